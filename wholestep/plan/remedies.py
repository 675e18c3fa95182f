"""Settings that need less of a device's memory than a recipe's own, the cheapest in time first."""

from __future__ import annotations

from wholestep.config.override import values_at
from wholestep.pipeline import Recipe

TRIED = 3


def remedies_of(recipe: Recipe) -> tuple[str, ...]:
    """At most `TRIED` overrides, each to be compiled alone, that usually make a step fit which does not."""
    rows = recipe.batch_size // recipe.mesh.size
    found = []
    if recipe.layers.execution == "unrolled" and len(recipe.model.layers) > 1:
        found.append("layers.execution=loop")
    if any(node.node_name == "dot_product" for node in values_at(recipe, "model.layers.*.attention.inner")):
        found.append("model.layers.*.attention.inner=splash")
    if recipe.layers.keep not in ("recompute_all", "offload_layer_inputs"):
        found.append("layers.keep=recompute_all")
    if rows > recipe.microbatches:
        more = next(n for n in range(recipe.microbatches + 1, rows + 1) if rows % n == 0)
        found.append(f"microbatches={more}")
    if recipe.layers.keep != "offload_layer_inputs":
        found.append("layers.keep=offload_layer_inputs")
    if recipe.optimizer_state == "device":
        found.append("optimizer_state=host")
    if rows > 1:
        found.append(f"batch_size={recipe.batch_size // 2}")
    return tuple(found[:TRIED])
