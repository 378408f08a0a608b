"""sandboxd: the server inside every sandbox, the same under bubblewrap, podman and Kubernetes.

It is process 1 of the sandbox's own process namespace and imports nothing of espalier, so that an
image needs Python, starlette and uvicorn besides it:

    espalier's client --HTTP--> sandboxd (1) --descriptors--> spawner --fork--> runner --fork--> job

A job is what the agent asked for. Its runner limits it, waits for it and kills whatever it left
behind; the spawner is a warm interpreter that forks runners. All run under one user id, so what
keeps a job off the others is a seccomp filter and the kernel's protection of process 1.
"""
