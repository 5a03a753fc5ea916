@0xb1c2d3e4f5a6b7c8;
# Envelopes: who asks, when, with which claims, and the signature over it.
# The signature is Ed25519 over the canonical encoding of the RequestEnvelope, without a segment table.

struct SignedEnvelope {
  envelope @0 :RequestEnvelope;
  signature @1 :Data;     # 64 bytes
  signerPubkey @2 :Data;  # 32 bytes
}

struct RequestEnvelope {
  requestId @0 :UInt64;
  identity @1 :RequestIdentity;
  payload @2 :Data;
  ephemeralPubkey @3 :Data;  # none, or 32 bytes
  nonce @4 :Data;            # 16 bytes
  timestamp @5 :Int64;       # Unix time in milliseconds
  claims @6 :Claims;
}

struct ResponseEnvelope {
  requestId @0 :UInt64;
  payload @1 :Data;
  signature @2 :Data;     # 64 bytes over the request's number, 8 bytes little-endian, and the payload
  signerPubkey @3 :Data;  # 32 bytes
}

struct RequestIdentity {
  union {
    local @0 :LocalIdentity;
    apiToken @1 :ApiTokenIdentity;
    peer @2 :PeerIdentity;
    anonymous @3 :Void;
  }
}

struct LocalIdentity {
  user @0 :Text;
}

struct ApiTokenIdentity {
  user @0 :Text;
  tokenName @1 :Text;
}

struct PeerIdentity {
  name @0 :Text;
  curveKey @1 :Data;  # 32 bytes
}

struct Claims {
  sub @0 :Text;
  exp @1 :Int64;  # Unix time in seconds
  iat @2 :Int64;  # Unix time in seconds
  scopes @3 :List(Scope);
  admin @4 :Bool;
}

struct Scope {
  action @0 :Text;
  resource @1 :Text;
  identifier @2 :Text;  # `*` stands for every one
}
