"""What tests of several folders share: made-up studies, scripts, and runs of them."""
