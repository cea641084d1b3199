"""Plugin: which examples properties are tried on. Where hypothesis isn't installed no property can be tried anyway."""

from __future__ import annotations

try:
    from hypothesis import settings
except ImportError:
    pass
else:
    # The same examples in every run, so that a change is judged by what it changed, and few, since more of the same
    # find nothing else; "make test-all" looks for new ones.
    settings.register_profile("same", deadline=None, derandomize=True, max_examples=30)
    settings.register_profile("new", deadline=None, max_examples=500, print_blob=True)
    settings.load_profile("same")
