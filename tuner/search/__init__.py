"""Proposes configs. A sampler is a function of the study's history: resuming needs nothing else."""
