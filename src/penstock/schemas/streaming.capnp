@0xe7f8a9b0c1d2e3f4;
# Token streams: how a stream is agreed on, registered, sent, resumed and ended.
# Messages travel in the standard framing with a segment table, never packed.

struct StreamInfo {
  # A service's answer to a request for a stream: where it is and the service's half of the key agreement.
  streamId @0 :Text;
  endpoint @1 :Text;
  serverPubkey @2 :Data;  # 32 bytes, Ristretto255
}

struct StreamRegister {
  # A publisher opens a topic. It travels as the payload of a signed envelope (common.capnp).
  topic @0 :Text;  # 64 lowercase hexadecimal digits
  exp @1 :Int64;   # Unix time in seconds
}

struct StreamStartRequest {
  # A client asks for a stream and shows its half of the key agreement.
  streamId @0 :Text;
  clientPubkey @1 :Data;  # 32 bytes, Ristretto255
}

struct StreamAuthResponse {
  # The other half, where it is not part of a StreamInfo.
  streamId @0 :Text;
  serverPubkey @1 :Data;  # 32 bytes, Ristretto255
}

struct StreamChunk {
  # One payload with its MAC. The relay reads `topic`, `hmac` and `prevHmac` only.
  topic @0 :Text;
  data @1 :Data;      # a framed StreamPayload
  hmac @2 :Data;      # 32 bytes over the previous MAC, or the topic at first, and `data`
  prevHmac @3 :Data;  # 32 bytes, or none at first
}

struct StreamBlock {
  # Several payloads under one MAC of 16 bytes, which is a frame of its own beside this message.
  prevMac @0 :Data;  # 16 bytes: the previous MAC, or the first 16 characters of the topic
  payloads @1 :List(StreamPayload);
}

struct StreamPayload {
  streamId @0 :Text;
  union {
    token @1 :Text;
    complete @2 :StreamStats;
    error @3 :StreamError;
    heartbeat @4 :Void;
  }
}

struct StreamStats {
  tokensGenerated @0 :UInt32;
  finishReason @1 :Text;  # stop, length, eos or error
  generationTimeMs @2 :UInt64;
  tokensPerSecond @3 :Float32;
  perplexity @4 :Float32;
  avgEntropy @5 :Float32;
}

struct StreamError {
  message @0 :Text;
  code @1 :Text;  # timeout, cancelled, internal and the like
  details @2 :Text;
}

struct StreamResume {
  # A client asks for everything after the last MAC that it accepted.
  topic @0 :Text;
  resumeFromHmac @1 :Data;  # 32 bytes for chunks, 16 for blocks
}
