"""Ray's RayService: the models that Ray Serve's own LLM application starts on a Ray cluster.

Sources: KubeRay, ray-operator/apis/ray/v1/rayservice_types.go; ray, python/ray/llm/_internal/serve/core/configs
(LLMConfig: `model_loading_config`, `engine_kwargs`, which are vLLM's own arguments) and ray/serve/llm (the builders).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from plimsoll.service.workloads.objects.object_parts import UnreadableObject, below, each_of, part_at
from plimsoll.service.workloads.objects.pods import PodGroup, Pods
from plimsoll.service.workloads.objects.workloads import ray_pods

CONFIG_FIELD = "serveConfigV2"
CONFIG_PATH = f"/spec/{CONFIG_FIELD}"
# Builders of Ray's own application; any other `import_path` is code of somebody's.
BUILDERS = ("ray.serve.llm:build_openai_app", "ray.serve.llm:build_pd_openai_app")
SINGLE_CONFIGS = ("prefill_config", "decode_config")
MOST_CONFIG_CHARACTERS = 65_536
MOST_MODELS = 16
MOST_ENGINE_OPTIONS = 200
# YAML's merges multiply what they merge.
YAML_MERGE = "<<"


def ray_service(manifest: Mapping[str, Any]) -> tuple[PodGroup, ...]:
    """Return the cluster's pods once for each model, started as by vLLM's command; raises UnreadableObject.

    Ray places the models beside each other; each has to fit the cluster by itself.
    """
    path = ("spec", "rayClusterConfig")
    head, *workers = ray_pods(part_at(manifest, path), path)
    text = part_at(manifest, ("spec",)).get(CONFIG_FIELD)
    if not isinstance(text, str) or not text.strip():
        return (PodGroup(members=(head, *workers), is_whole=True),)
    models = [command for application in _applications(text) for command in _commands(application)]
    if len(models) > MOST_MODELS:
        raise _unreadable(f"has more than {MOST_MODELS} models")
    return tuple(
        PodGroup(members=(_serving(head, command), *workers), replicas=None, is_whole=True) for command in models
    )


def _serving(head: Pods, command: list[str]) -> Pods:
    # Ray starts it on workers; of the head's containers none else serves a model.
    submitted = replace(
        head.containers[0], command=tuple(command), args=(), resources={}, env={}, definition={}, image=""
    )
    return replace(head, containers=(*head.containers, submitted))


def _applications(text: str) -> list[Any]:
    if len(text) > MOST_CONFIG_CHARACTERS or YAML_MERGE in text:
        raise _unreadable("is larger than a config, or merges parts of itself")
    try:
        config = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise _unreadable("is no YAML") from error
    applications = each_of(below(config, ("applications",)))
    if not applications:
        raise _unreadable("names no application")
    return applications


def _commands(application: Any) -> Iterator[list[str]]:
    """Yield vLLM's command for each model of an application."""
    builder = str(below(application, ("import_path",)) or "")
    if builder not in BUILDERS:
        raise _unreadable(f"starts {builder[:80]}, which is code that is not in the object")
    args = below(application, ("args",))
    configs = [*each_of(below(args, ("llm_configs",)))]
    configs += [below(args, (name,)) for name in SINGLE_CONFIGS if below(args, (name,)) is not None]
    if not configs:
        raise _unreadable(f"{builder} is given no model")
    for config in configs:
        yield ["vllm", "serve", _model(config), *_engine_words(below(config, ("engine_kwargs",)))]


def _model(config: Any) -> str:
    """Return where the model comes from, which is its own name where nothing else is said."""
    loading = below(config, ("model_loading_config",))
    source = below(loading, ("model_source",)) or below(loading, ("model_id",))
    if not isinstance(source, str):
        raise _unreadable("takes a model from where its name cannot be seen")
    return source


def _engine_words(options: Any) -> Iterator[str]:
    """Yield vLLM's options; what is off or none is left away, as its engine's defaults are."""
    given = options if isinstance(options, dict) else {}
    if len(given) > MOST_ENGINE_OPTIONS:
        raise _unreadable("has more engine options than vLLM")
    for name, value in given.items():
        flag = f"--{str(name).replace('_', '-')}"
        if value is True:
            yield flag
        elif isinstance(value, str | int | float) and value is not False:
            yield f"{flag}={value}"
        elif isinstance(value, dict | list):
            yield flag


def _unreadable(what: str) -> UnreadableObject:
    return UnreadableObject(f"{CONFIG_PATH} {what}.", pointer=CONFIG_PATH)
