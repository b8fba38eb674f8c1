"""Puts together what starts an engine: its command, its process group, and a client that has its admin token."""

from collections.abc import Mapping

import aiohttp

from pearl_worker.engine_command import EngineCommand, engine_command
from pearl_worker.engine_http import HttpEngineClient
from pearl_worker.engine_process import GroupLauncher, Reaper
from pearl_worker.ports import EngineClient
from pearl_worker.settings import Settings


def http_launcher(
    settings: Settings, reaper: Reaper, session: aiohttp.ClientSession, environment: Mapping[str, str]
) -> GroupLauncher:
    """Starts engines of `settings`; `environment` is the container's."""

    def command(admin_token: str) -> EngineCommand:
        return engine_command(settings, environment, admin_token)

    def client(admin_token: str) -> EngineClient:
        url = f"http://127.0.0.1:{settings.engine_port}"
        return HttpEngineClient(session, url, settings.model_name, admin_token)

    return GroupLauncher(reaper, command, client, settings.scratch_directory)
