"""The figures of a check: a bundle's predictions compared with those of the model in float32."""

from __future__ import annotations

from edge.errors import ExportError
from edge.export.quantize import METHODS
from edge.manifest import Manifest
from edge.runtime.check.perplexity import Agreement


def figures(found: Agreement) -> dict[str, float]:
    """Return the figures in the manifest's form."""
    return {
        "check_tokens": float(found.tokens),
        "top1_agreement": round(found.top1, 4),
        "kl_mean": round(found.kl_mean, 6),
        "kl_p95": round(found.kl_p95, 6),
        "perplexity": round(found.candidate, 4),
        "perplexity_float32": round(found.reference, 4),
    }


def refuse_if_broken(found: Agreement, manifest: Manifest, *, flag: str = "--weights") -> None:
    """Raise ExportError if the bundle's predictions are not those of the model. flag: the option that chose the
    weights."""
    weights = manifest.weights
    halves = [METHODS[half].traits for half in weights.split("+")]  # of an encoder-decoder
    most, least = max(half["max_kl"] for half in halves), min(half.get("min_top1", 0.0) for half in halves)
    if found.kl_mean <= most and found.top1 >= least:
        return
    raise ExportError(
        f"The exported {manifest.name} does not answer as the model in float32 does (mean KL divergence "
        f"{found.kl_mean:.3g}, top-1 agreement {found.top1:.1%}, perplexity {found.candidate:.4g} against "
        f"{found.reference:.4g}), so nothing was written; try more precise {flag} than {weights}, and report it "
        "where fp32 fails too."
    )
