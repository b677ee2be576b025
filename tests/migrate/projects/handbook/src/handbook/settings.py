from dataclasses import dataclass, field


@dataclass(frozen=True)
class SearchSettings:
    keyword_k: int = 2
    vector_k: int = 3
    weights: tuple = (0.6, 0.4)
    constant: int = 60
    keep: int = 2
    questions: list = field(default_factory=list)
