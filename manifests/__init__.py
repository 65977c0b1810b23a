"""What is written down: the nouns of clipmill, and the files that hold them."""

from clipmill.manifests.schema import Ablation, Blend, Pair, Recipe, Source, TaskSpec, View

__all__ = ["Ablation", "Blend", "Pair", "Recipe", "Source", "TaskSpec", "View"]
