"""sandboxd: the server inside every sandbox, the same under bubblewrap, podman and Kubernetes.

It is pid 1 of the sandbox's pid namespace and imports nothing from espalier, so that an image needs
only Python, starlette and uvicorn besides it:

    espalier's client --HTTP--> sandboxd (1) --descriptors--> spawner --fork--> runner --fork--> job

A job is the agent's program or code. Its runner limits it, waits for it and kills all processes
that it leaves; the spawner is a warm interpreter that forks runners. All have the same user id, so
a seccomp filter and the kernel's protection of pid 1 keep jobs away from the other processes.

    app, workspace, metrics     HTTP requests, files and snapshots, counters
    runs, run, watchdog         the runs of a sandbox: start, output, end; limits by sampling
    spawner                     child of sandboxd that forks runners
    runner                      limits, supervises and ends one job
    interpreter                 Python code in a fork of the spawner
    standstill                  check that a session does not run between its calls
    seccomp, syscalls           the system calls that jobs may make
    landlock                    folders that jobs may write, and separation of runs
    kernel, sockets, wire       Linux calls and /proc; memory of sockets; requests and frames
"""
