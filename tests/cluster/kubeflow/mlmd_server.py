"""ML Metadata's store behind gRPC, in an environment of its own.

    python mlmd_server.py FILE PORT WEB_PORT

Its project publishes the server as an image alone; the store itself is in its Python package. Every
call of the service goes to the store's function of that name, as bytes. Browsers speak gRPC-Web,
which Kubeflow has Envoy translate: here the second port understands it.
"""

import struct
import sys
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from ml_metadata.metadata_store.pywrap.metadata_store_extension import metadata_store
from ml_metadata.proto import metadata_store_pb2

_SERVICE = "ml_metadata.MetadataStoreService"
_ABORTED = 10
_TRIES = 5
_STATUSES = {status.value[0]: status for status in grpc.StatusCode}
_UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED.value[0]
_MOST_BYTES = 256 * 2**20
_WEB_TYPE = "application/grpc-web+proto"
_FRAME = ">BI"
"""Of a message in gRPC-Web: flags, and the length of what follows (its PROTOCOL-WEB.md)."""
_TRAILERS = 0x80


class Store:
    """Called by one thread at a time: sqlite has one writer."""

    def __init__(self, file):
        config = metadata_store_pb2.ConnectionConfig()
        config.sqlite.filename_uri = file
        config.sqlite.connection_mode = (
            metadata_store_pb2.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
        )
        options = metadata_store_pb2.MigrationOptions().SerializeToString()
        self._store = metadata_store.CreateMetadataStore(config.SerializeToString(), options)
        self._one_call = threading.Lock()

    @staticmethod
    def function(path):
        """Of a method by its path, or None."""
        service, _, name = path.strip("/").partition("/")
        return getattr(metadata_store, name, None) if service == _SERVICE else None

    def call(self, function, request):
        """(answer, message of an error, its status)."""
        with self._one_call:
            for _ in range(_TRIES):
                body, message, status = function(self._store, request)
                if status != _ABORTED:
                    break
        return body, message.decode(), status


class Handler(grpc.GenericRpcHandler):
    """gRPC as programs speak it."""

    def __init__(self, store):
        self._store = store

    def service(self, details):
        function = self._store.function(details.method)
        if function is None:
            return None

        def call(request, context):
            body, message, status = self._store.call(function, request)
            if status:
                context.abort(_STATUSES[status], message)
            return body

        return grpc.unary_unary_rpc_method_handler(call, bytes, bytes)


class WebHandler(BaseHTTPRequestHandler):
    """gRPC-Web as browsers speak it, without text encoding and streams."""

    protocol_version = "HTTP/1.1"
    store: Store

    def do_POST(self):
        framed = self.rfile.read(int(self.headers["content-length"]))
        function = self.store.function(self.path)
        if function is None:
            body, message, status = b"", f"no method {self.path}", _UNIMPLEMENTED
        else:
            request = framed[struct.calcsize(_FRAME) :]
            body, message, status = self.store.call(function, request)
        trailers = f"grpc-status:{status}\r\ngrpc-message:{message}\r\n".encode()
        answer = b"" if status else struct.pack(_FRAME, 0, len(body)) + body
        answer += struct.pack(_FRAME, _TRAILERS, len(trailers)) + trailers
        self.send_response(200)
        self.send_header("content-type", _WEB_TYPE)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main():
    file, port, web_port = sys.argv[1:]
    store = Store(file)
    # a second server on the same port would take half of the calls
    options = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.so_reuseport", 0)]
    server = grpc.server(futures.ThreadPoolExecutor(8), options=options)
    server.add_generic_rpc_handlers((Handler(store),))
    server.add_insecure_port(f"0.0.0.0:{port}")
    server.start()
    WebHandler.store = store
    ThreadingHTTPServer(("0.0.0.0", int(web_port)), WebHandler).serve_forever()


if __name__ == "__main__":
    main()
