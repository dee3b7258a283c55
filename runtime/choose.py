"""The choice of what an engine opens of a bundle: by the options, the bundle and the memory budget.

docs/reference/variants.md has a table of the combinations; each refusal and each trade-off of it is here, so that an
engine asks no further questions.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edge.bundle import Bundle
from edge.embedding_format import RERANKER
from edge.errors import InputError
from edge.manifest import FLOAT32, KV8, PREFILL_VERSION, SKIP
from edge.runtime.engine.variant import AUTO, DECODER, OFF, Variant, kv_dtypes, runs_whole, takes_prefill
from edge.runtime.load_options import LoadOptions
from edge.runtime.memory.shares import WAIT
from edge.runtime.options import kind_of
from edge.runtime.providers import check_provider, provider_name
from edge.runtime.skip import make_policy
from edge.runtime.speculate.drafter import check_argument, parts_of_model
from edge.targets import CUDA, path_of, target_for

if TYPE_CHECKING:
    from edge.manifest import Manifest
    from edge.runtime.memory.plan import Plan
    from edge.runtime.skip.skip_policy import SkipPolicy

_log = logging.getLogger(__name__)


def choose(bundle: Bundle, options: LoadOptions, *, present: int = 0) -> Variant:
    """Choose the variant of a bundle for these options, the best that their memory has room for.

    present: bytes of this process so far, which count where memory is limited.

    Raises:
        InputError: an option out of its range or unknown, options that do not go together, or that the bundle cannot
            have; or too little memory.
        BundleError: a file that an option names cannot be read.
    """
    manifest, decoder = bundle.manifest, bundle.manifest.encoder is None
    if manifest.embedding is not None:
        raise InputError(answers_nothing(manifest))
    check_provider(options.provider)
    if options.prefill_chunk is not None and not decoder:
        raise InputError(f"{manifest.name} is an encoder-decoder and reads no prompt in chunks; omit the chunk.")
    if options.when_full != WAIT and options.memory is None:
        raise InputError(f"when_full={options.when_full!r} is for a memory limit; give memory too, or leave it out.")
    speculate = check_argument(options.speculate, bundle)
    if not decoder and speculate != OFF and (options.beams or 1) > 1:
        raise InputError(f"The drafter {speculate} drafts one text at a time; leave it out, or ask for one beam.")
    policy = segments_policy(bundle, options.skip, speculate)
    target = _target(bundle, options, policy)
    if manifest.states and (policy is not None or target is not None):
        raise InputError(
            f"{manifest.name} has layers with states, which only its graph of all layers has; omit what skips layers, "
            "and choose the provider cpu."
        )
    if target is not None:
        limit = options.memory
        if isinstance(limit, str):
            from edge.runtime.sizes import parse_size

            limit = parse_size(limit)
        return Variant(context=options.context, speculate=speculate, target=target, limit=limit)
    exact = (decoder or speculate != OFF) if options.exact is None else options.exact
    whole = runs_whole(bundle, policy)
    kv = kv_dtypes(bundle, options.kv, whole=whole, provider=options.provider)
    prefill = takes_prefill(bundle, policy, options.provider)
    plan = None if options.memory is None else _plan(bundle, options, present, exact, speculate, kv, prefill)
    if plan is not None:
        kv = [plan.demand.kv]
        if plan.demand.width < 2 and speculate != OFF:  # segments would stand apart for nothing
            speculate, policy = OFF, segments_policy(bundle, options.skip, OFF)
    role = SKIP if not whole else DECODER if kv[0] == FLOAT32 else KV8
    prefill = prefill and kv[0] == FLOAT32 and _prefill(bundle, plan)
    refuse = options.when_full != WAIT
    return Variant(role, kv[0], prefill, policy, exact, options.context, speculate, plan, refuse=refuse)


def answers_nothing(manifest: Manifest) -> str:
    """The sentence for a model that is asked for what only models that answer do."""
    if kind_of(manifest) == RERANKER:
        return f"{manifest.name} ranks documents, and answers nothing; use edge rerank, or rank in Python."
    return f"{manifest.name} makes vectors of texts, and answers nothing; use edge embed, or embed in Python."


def _target(bundle: Bundle, options: LoadOptions, policy: SkipPolicy | None) -> str | None:
    """The bundle's graphs for the device of the provider that is named; None where it has none.

    Raises:
        InputError: an option that graphs of fixed sizes cannot have.
    """
    provider = provider_name(options.provider)
    target = target_for(bundle, provider)
    if target is None:
        if provider == CUDA:
            raise InputError(
                f"{bundle.manifest.name} has no graphs for CUDA ({path_of(CUDA)}); export it with --target cuda, or "
                "choose the provider cpu."
            )
        return None
    unfit = {
        "--exact": options.exact,
        f"--skip {options.skip}": options.skip != OFF,
        f"--speculate {options.speculate}": policy is not None and options.skip == OFF,
        f"--kv {options.kv}": options.kv != AUTO,
        "--memory": options.memory is not None and target != CUDA,
        f"when_full={options.when_full!r}": options.when_full != WAIT,
    }
    for given, asked in unfit.items():
        if asked:
            raise InputError(
                f"{given} does not apply to the graphs of {bundle.manifest.name} for {target}; leave it out, or choose"
                " the provider cpu."
            )
    return target


def segments_policy(bundle: Bundle, skip: str, speculate: str) -> SkipPolicy | None:
    """Return the policy of an engine over segments; None where the whole graph runs.

    Raises:
        InputError: there is no such policy or drafter, the bundle cannot have it, or not both together.
    """
    skipping, drafting = make_policy(skip, bundle), parts_of_model(speculate, bundle)
    if skipping is not None and drafting is not None:
        raise InputError(
            f"The drafter {speculate} skips layers that the whole model checks, which --skip {skip} does not run; "
            "choose one of the two."
        )
    return skipping or drafting


def _plan(
    bundle: Bundle, options: LoadOptions, present: int, exact: bool, speculate: str, kv: list[str], prefill: bool
) -> Plan:
    from edge.runtime.budget import make_exact_plan, make_plan

    make = make_exact_plan if exact and bundle.manifest.encoder is None else make_plan
    return make(
        bundle,
        options.memory,
        context=options.context,
        chunk=options.prefill_chunk,
        branches=options.beams,
        present=present,
        prefill=prefill,
        kv=kv,
        speculate=speculate,
    )


def _prefill(bundle: Bundle, plan: Plan | None) -> bool:
    """True if the bundle has an int8 prefill graph that can be used; why not is logged."""
    form, name = bundle.manifest.prefill, bundle.manifest.name
    if form is None:
        return False
    if not form.known:
        _log.warning(
            f"The int8 prefill graph of {name} is {form.weights} of version {form.version}, and this edge reads int8 "
            f"of version {PREFILL_VERSION}: prompts run without it, more slowly; upgrade edge, or export it again."
        )
        return False
    if plan is not None and not plan.demand.prefill:
        _log.warning(
            f"The memory limit has no room for the int8 prefill graph of {name}: prompts are read without it, more "
            "slowly."
        )
        return False
    return True
