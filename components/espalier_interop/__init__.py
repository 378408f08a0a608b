"""Environments and trajectories that cross to other libraries.

openenv, mcp, harbor, verifiers     environments whose tasks or tools are served by others
exports                             trajectories as files of verifiers, TRL and Harbor
openenv_tasks      which tasks are served, by split and number; gold answers stay here
openenv_session    one client's episode, stepped by tool calls
openenv_sessions   the limit of sessions, and sessions that outlive a socket
openenv_app        HTTP routes and WebSockets on top of the sessions
openenv_server     the server process, which runs until it is interrupted
commands           `espalier environments serve` and `espalier data export`
"""
