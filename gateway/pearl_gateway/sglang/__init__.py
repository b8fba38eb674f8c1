"""What training loops expect of an external SGLang engine, over the gateway's own turns.

`generate` translates one request, `running` knows what is under way, `info` tells what there is, `weights` maps
updates to the manifest, and `routes` puts them on paths.
"""

from pearl_gateway.sglang.routes import sglang_routes

__all__ = ["sglang_routes"]
