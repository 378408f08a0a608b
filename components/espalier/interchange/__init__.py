"""A family's tasks behind OpenEnv's protocol, and trajectories in the formats of other libraries.

    openenv_tasks      which tasks are served, by split and number; gold answers stay here
    openenv_session    one client's episode, stepped by tool calls
    openenv_desk       the limit of sessions, and sessions that outlive a socket
    openenv_app        HTTP routes and WebSockets on top of the sessions
    openenv_server     the server process, which runs until it is interrupted
    exports            trajectories as files of verifiers, TRL and Harbor

`espalier environments serve` and `espalier data export` use them. The client that plays on other
OpenEnv servers is `espalier.environments.openenv`.
"""
