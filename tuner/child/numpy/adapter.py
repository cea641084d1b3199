"""NumPy: its seeds are shifted, and what it maps into memory is led. What trains with it is noted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from .. import preloaded
from ..adapter import Adapter, Library
from ..patches import patch
from ..seeds import shifted
from ..session import Session
from ..started import SKLEARN
from .files import divert


class NumpyAdapter(Adapter):
    """Seeds and files."""

    framework = "numpy"

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def libraries(self) -> Mapping[str, Library]:
        """NumPy itself and scikit-learn."""
        return {"numpy": Library(seed=seed, divert=divert), SKLEARN: Library(self._note_fits)}

    def _note_fits(self, sklearn: ModuleType) -> None:
        """In an applied run: an estimator that is fitted, and no scaler or encoder, may be what the script trains."""
        applied = self.session.applied
        if applied is None:
            return

        def validating(original: Callable[[object], None]) -> Callable[[object], None]:
            def _validate_params(estimator: object) -> None:
                if hasattr(type(estimator), "predict"):
                    applied.started.add(f"{type(estimator).__name__} of scikit-learn")
                original(estimator)

            return _validate_params

        patch(sklearn.BaseEstimator, "_validate_params", validating)


def seed(shift: int, numpy: ModuleType) -> None:
    """Seeds the global generator, and shifts what the script seeds."""
    numpy.random.seed(shift)
    if preloaded.here is not None and preloaded.here.drawn_by_numpy:  # of no bytes it draws some, too
        numpy.random.bytes(4 * preloaded.here.drawn_by_numpy)  # as the imports would have
    patch(numpy.random, "seed", shifted(shift))
    patch(numpy.random, "default_rng", shifted(shift))
