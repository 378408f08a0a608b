"""An endpoint that records an agent's calls of a policy, so that any agent can be trained.

    POST /attempts/ID/v1/chat/completions     also /v1/responses and /v1/messages
    POST /attempts/ID/reward                  the attempt's reward

A request passes: endpoint -> formats (parse it) -> conversation (its token ids, sampled ones as
they were sampled) -> attempt (samples, records) -> graph (how the calls continue one another). At
its end an attempt is one trajectory, or is lost for a recorded reason.
"""
