"""How long blocks, warm-ups and what is done again may last; see ``clock``."""

from __future__ import annotations

from .records import Phase

# What happens again and again, such as a trace with every batch, is part of the loop. A scaler looks for its scale, and
# torch.compile for the shapes that there are, in fewer blocks than that.
MOST_RESTARTS = {Phase.WARMUP: 20, Phase.WINDOW: 5}

STEPS_BETWEEN_WAITS = 8
"""Of a block on a device that works behind the script's back. A wait for it takes away the lead that the script had:
what the script does itself in a step (fetches, launches) then shows once a block, where it would have been hidden."""
LONGEST_BLOCK = 8
"""Times ``block_s``, after which such a block ends all the same: steps of seconds would make it endless."""
FILL_S = 20.0
"""So long a warm-up lasts at most for a cache that is being filled: what it gains shows afterwards only."""
