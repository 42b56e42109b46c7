from dataclasses import dataclass
@dataclass(frozen=True)
class Plan:
    minutes: float = 60.0
    targets: int = 2000
    rank: int = 16
    batch: int = 4
    rate: float = 1e-3
    transform_rate: float = 3e-3
    save_every: float = 5.0
