"""Handles `models/list`."""

from __future__ import annotations

from functools import partial

from sidecar.counting.model_list import ModelInfo, choices, search
from sidecar.server.feature import Feature
from sidecar.server.methods import ModelsParams
from sidecar.workspace.services import Services


class Models(Feature):
    """Lists the known models, and those that the workspace uses."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.handlers = {"models/list": self._list}

    async def _list(self, params: ModelsParams) -> list[ModelInfo]:
        services = self._services
        await services.configured.wait()
        workspace = services.find_workspace_or_first(params.workspace)
        describe = services.counts.tokenizers(workspace.settings).describe
        if not params.choices:
            return await services.workers.run(partial(search, params.query, describe))
        declared = services.counts.endpoints(workspace.settings).models()
        spending, model = services.spending(workspace), workspace.model

        def list_choices() -> list[ModelInfo]:
            return choices(params.query, describe, (model, *spending.recent_models(), *declared))

        return await services.workers.run(list_choices)
