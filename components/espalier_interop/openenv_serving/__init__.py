"""Our environments, served by OpenEnv's protocol to clients of other libraries.

tasks      which tasks are served, by split and number; gold answers stay here
session    one client's episode, stepped by tool calls
sessions   the limit of sessions, and sessions that outlive a socket
app        HTTP routes and WebSockets on top of the sessions
server     the server process, which runs until it is interrupted
"""
