"""What kind of work a kernel or operator of a profile does, by its name."""

from __future__ import annotations

import re

# Kernels and operators by name; the first that fits counts. Inductor names a kernel after all that
# it fused.
KINDS = {
    "norm_elementwise": r"^triton_(poi|red|per)|layer_?norm|gamma",
    "attention": r"flash|fmha|sdpa|attention|varlen",
    "optimizer": r"adam|multi_tensor|foreach|lpnorm|vector_norm",
    "gemm": r"gemm|cutlass|nvjet|xmma|cublas|triton_tem|splitk|convol|conv2d|linear"
    r"|aten::(b|add|baddb)?mm$",
    "elementwise": r"elementwise|vectorized|reduce|softmax|gelu|cat|copy|fill|cast|cross_entropy|"
    r"aten::(add|sub|mul|div|exp|log|sum|mean|norm|clamp|neg|sqrt|to|zero|where|stack|argmax|eq)",
}


def kind_of(name: str) -> str:
    """What a kernel or operator does, by its name."""
    word = next(
        (kind for kind, words in KINDS.items() if re.search(words, name, re.IGNORECASE)), "other"
    )
    return "norm_elementwise" if word == "elementwise" else word
