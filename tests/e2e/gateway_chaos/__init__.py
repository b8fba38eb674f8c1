"""Breaks everything behind the gateway, and the gateway, and checks every token. See docs/gateway-chaos.md."""
