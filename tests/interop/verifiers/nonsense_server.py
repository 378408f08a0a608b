"""A server on the wire of an EnvServer whose answers are none, for the venv of verifiers.

python nonsense_server.py PORT
"""

import sys

import msgpack
import zmq

TASK = {"type": "T", "data": {"prompt": "x"}, "key": "k", "hash": "h"}


def answers(prompt):
    """The frames after the id of a run."""
    match prompt:
        case "bytes":
            return [b"reply", b"\xc1\xc1"]
        case "frames":
            return [b"reply"]
        case "refusal":
            return [b"reply", packed(success=False, error="no such taskset here")]
        case "nothing":
            return [b"reply", packed(success=True, head={"task": TASK, "ok": True}, traces=[])]
    return None


def packed(**fields):
    return msgpack.packb(fields)


def main():
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(f"tcp://127.0.0.1:{sys.argv[1]}")
    while True:
        client, request, method, payload = router.recv_multipart()
        if method == b"health":
            router.send_multipart([client, request, b"reply", packed(success=True)])
        elif method == b"run":
            frames = answers(msgpack.unpackb(payload)["task_data"]["prompt"])
            if frames is not None:
                router.send_multipart([client, request, *frames])


if __name__ == "__main__":
    main()
