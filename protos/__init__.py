"""gRPC interfaces that gpushare speaks: our .proto files and the code generated from them."""
