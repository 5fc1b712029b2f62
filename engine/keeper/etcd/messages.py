"""etcd's messages, as far as they are needed, and the paths of its methods.

The classes are made here at run time, in a pool of their own: no generated code that ties this project to one
release of protobuf, and no clash with another etcd client in the same process.

Source: `rpc.proto` and `kv.proto` of etcd 3.4 and 3.5. Fields of a `oneof` stand here as plain fields, which
look the same on the wire; a number that is not set is sent as nothing and read by etcd as 0.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "oncluster.etcd"

_FIELDS = {
    "Header": "cluster_id:1:uint64 member_id:2:uint64 revision:3:int64 raft_term:4:uint64",
    "KeyValue": "key:1:bytes create_revision:2:int64 mod_revision:3:int64 version:4:int64 value:5:bytes"
    " lease:6:int64",
    "Event": "type:1:int32 kv:2:KeyValue",
    "RangeRequest": "key:1:bytes range_end:2:bytes limit:3:int64 revision:4:int64 keys_only:8:bool",
    "RangeResponse": "header:1:Header kvs:2:*KeyValue more:3:bool count:4:int64",
    "PutRequest": "key:1:bytes value:2:bytes lease:3:int64 ignore_value:5:bool",
    "DeleteRangeRequest": "key:1:bytes range_end:2:bytes",
    "Empty": "",
    "RequestOp": "request_range:1:RangeRequest request_put:2:PutRequest"
    " request_delete_range:3:DeleteRangeRequest request_txn:4:TxnRequest",
    "ResponseOp": "response_range:1:RangeResponse response_txn:4:TxnResponse",
    "Compare": "result:1:int32 target:2:int32 key:3:bytes version:4:int64 create_revision:5:int64"
    " mod_revision:6:int64 value:7:bytes lease:8:int64 range_end:64:bytes",
    "TxnRequest": "compare:1:*Compare success:2:*RequestOp failure:3:*RequestOp",
    "TxnResponse": "header:1:Header succeeded:2:bool responses:3:*ResponseOp",
    "WatchCreateRequest": "key:1:bytes range_end:2:bytes start_revision:3:int64 watch_id:7:int64",
    "WatchRequest": "create_request:1:WatchCreateRequest",
    "WatchResponse": "header:1:Header watch_id:2:int64 created:3:bool canceled:4:bool"
    " compact_revision:5:int64 cancel_reason:6:string events:11:*Event",
    "LeaseGrantRequest": "TTL:1:int64 ID:2:int64",
    "LeaseGrantResponse": "header:1:Header ID:2:int64 TTL:3:int64",
    "LeaseRevokeRequest": "ID:1:int64",
    "LeaseKeepAliveRequest": "ID:1:int64",
    "LeaseKeepAliveResponse": "header:1:Header ID:2:int64 TTL:3:int64",
    "AuthenticateRequest": "name:1:string password:2:string",
    "AuthenticateResponse": "header:1:Header token:2:string",
    "StatusRequest": "",
    "StatusResponse": "header:1:Header version:2:string leader:4:uint64",
}
"""By message: name:number:type, a list with a star."""

_TYPES = {
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="oncluster_etcd.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for text in fields.split():
            field_name, number, type_name = text.split(":")
            field = message.field.add(name=field_name, number=int(number))
            is_list = type_name.startswith("*")
            field.label = field.LABEL_REPEATED if is_list else field.LABEL_OPTIONAL
            type_name = type_name.removeprefix("*")
            if type_name in _TYPES:
                field.type = _TYPES[type_name]
            else:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in _FIELDS
    }


_made = _classes()

# Any: the classes exist only at run time.
RangeRequest: Any = _made["RangeRequest"]
RangeResponse: Any = _made["RangeResponse"]
PutRequest: Any = _made["PutRequest"]
DeleteRangeRequest: Any = _made["DeleteRangeRequest"]
RequestOp: Any = _made["RequestOp"]
Compare: Any = _made["Compare"]
TxnRequest: Any = _made["TxnRequest"]
TxnResponse: Any = _made["TxnResponse"]
WatchCreateRequest: Any = _made["WatchCreateRequest"]
WatchRequest: Any = _made["WatchRequest"]
WatchResponse: Any = _made["WatchResponse"]
LeaseGrantRequest: Any = _made["LeaseGrantRequest"]
LeaseGrantResponse: Any = _made["LeaseGrantResponse"]
LeaseRevokeRequest: Any = _made["LeaseRevokeRequest"]
LeaseKeepAliveRequest: Any = _made["LeaseKeepAliveRequest"]
LeaseKeepAliveResponse: Any = _made["LeaseKeepAliveResponse"]
AuthenticateRequest: Any = _made["AuthenticateRequest"]
AuthenticateResponse: Any = _made["AuthenticateResponse"]
StatusRequest: Any = _made["StatusRequest"]
StatusResponse: Any = _made["StatusResponse"]
Empty: Any = _made["Empty"]

TXN = ("/etcdserverpb.KV/Txn", TxnResponse)
LEASE_GRANT = ("/etcdserverpb.Lease/LeaseGrant", LeaseGrantResponse)
LEASE_REVOKE = ("/etcdserverpb.Lease/LeaseRevoke", Empty)
AUTHENTICATE = ("/etcdserverpb.Auth/Authenticate", AuthenticateResponse)
STATUS = ("/etcdserverpb.Maintenance/Status", StatusResponse)
"""A method that is called once: its path and the class of its answer."""
WATCH = ("/etcdserverpb.Watch/Watch", WatchResponse)
LEASE_KEEP_ALIVE = ("/etcdserverpb.Lease/LeaseKeepAlive", LeaseKeepAliveResponse)
"""A method that is a conversation."""

EVENT_PUT, EVENT_DELETE = 0, 1

_EQUAL, _LESS = 0, 2
_VERSION, _CREATE, _MOD, _VALUE = 0, 1, 2, 3


def compare_mod(key: bytes, revision: int) -> Any:
    """That the key was written last at `revision`; 0: that there is no such key."""
    return Compare(result=_EQUAL, target=_MOD, key=key, mod_revision=revision)


def compare_created(key: bytes, revision: int) -> Any:
    """That the key is the one that was created at `revision`; 0: that there is no such key."""
    return Compare(result=_EQUAL, target=_CREATE, key=key, create_revision=revision)


def compare_version(key: bytes, version: int) -> Any:
    """That the key exists and was written so often."""
    return Compare(result=_EQUAL, target=_VERSION, key=key, version=version)


def compare_value(key: bytes, value: bytes) -> Any:
    """What stands in the key; not empty, for etcd would take that for anything."""
    return Compare(result=_EQUAL, target=_VALUE, key=key, value=value)


def compare_untouched(key: bytes, range_end: bytes, revision: int) -> Any:
    """That no key of the range that exists was written after `revision`. Removals go unnoticed."""
    return Compare(result=_LESS, target=_MOD, key=key, range_end=range_end, mod_revision=revision + 1)


def range_op(key: bytes, range_end: bytes = b"", *, keys_only: bool = False, revision: int = 0) -> Any:
    """Read a key or a range of keys, now or as it was at a revision."""
    return RequestOp(
        request_range=RangeRequest(key=key, range_end=range_end, keys_only=keys_only, revision=revision)
    )


def put_op(key: bytes, value: bytes, *, lease: int = 0) -> Any:
    return RequestOp(request_put=PutRequest(key=key, value=value, lease=lease))


def touch_op(key: bytes) -> Any:
    """Write a key that exists with the value that it has."""
    return RequestOp(request_put=PutRequest(key=key, ignore_value=True))


def delete_op(key: bytes, range_end: bytes = b"") -> Any:
    return RequestOp(request_delete_range=DeleteRangeRequest(key=key, range_end=range_end))


def txn_op(request: Any) -> Any:
    return RequestOp(request_txn=request)
