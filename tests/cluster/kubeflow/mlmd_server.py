"""ML Metadata's store behind gRPC, in an environment of its own: `python mlmd_server.py FILE PORT`.

Its project publishes the server as an image alone; the store itself is in its Python package. Every
call of the service goes to the store's function of that name, as bytes.
"""

import sys
import threading
from concurrent import futures

import grpc
from ml_metadata.metadata_store.pywrap.metadata_store_extension import metadata_store
from ml_metadata.proto import metadata_store_pb2

_SERVICE = "ml_metadata.MetadataStoreService"
_ABORTED = 10
_TRIES = 5
_STATUSES = {status.value[0]: status for status in grpc.StatusCode}
_MOST_BYTES = 256 * 2**20


class Handler(grpc.GenericRpcHandler):
    """Calls the store, one call at a time: sqlite has one writer."""

    def __init__(self, file):
        config = metadata_store_pb2.ConnectionConfig()
        config.sqlite.filename_uri = file
        config.sqlite.connection_mode = (
            metadata_store_pb2.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        )
        options = metadata_store_pb2.MigrationOptions().SerializeToString()
        self._store = metadata_store.CreateMetadataStore(config.SerializeToString(), options)
        self._one_call = threading.Lock()

    def service(self, details):
        service, _, name = details.method.strip("/").partition("/")
        function = getattr(metadata_store, name, None)
        if service != _SERVICE or function is None:
            return None

        def call(request, context):
            with self._one_call:
                for _ in range(_TRIES):
                    body, message, status = function(self._store, request)
                    if status != _ABORTED:
                        break
            if status:
                context.abort(_STATUSES[status], message.decode())
            return body

        return grpc.unary_unary_rpc_method_handler(call, bytes, bytes)


def main():
    file, port = sys.argv[1:]
    # a second server on the same port would take half of the calls
    options = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.so_reuseport", 0)]
    server = grpc.server(futures.ThreadPoolExecutor(8), options=options)
    server.add_generic_rpc_handlers((Handler(file),))
    server.add_insecure_port(f"0.0.0.0:{port}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
