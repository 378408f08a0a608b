"""For others: a family's tasks behind OpenEnv's protocol, and trajectories in their formats.

    openenv_tasks      which tasks are served, by split and number; golds stay here
    openenv_session    one client: its episode, stepped by tool calls
    openenv_desk       how many sessions there may be, and those that outlive a socket
    openenv_app        HTTP routes and WebSockets over the sessions
    openenv_server     listens, until it is interrupted
    exports            trajectories as files of verifiers, TRL and Harbor

`espalier environments serve` and `espalier data export` use them. What plays on
the servers of others is `espalier.environments.openenv`.
"""
