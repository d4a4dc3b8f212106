//! Reads a runtime's answers as bytes and looks for anything our contract does not know: the one thing that typed
//! decoding hides.
//!
//! In: an endpoint, a method, a request. Out: the answer's bytes, to be checked with
//! [`orlop_proto::contract::Contract::unknown_on_wire`].

use std::time::Duration;

use prost::Message;
use prost::bytes::{Buf, BufMut};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

use crate::connect;
use crate::error::CriError;

/// Messages as the bytes they are.
#[derive(Default)]
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Bytes;
    type Decoder = Bytes;

    fn encoder(&mut self) -> Bytes {
        Bytes
    }

    fn decoder(&mut self) -> Bytes {
        Bytes
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining()).to_vec()))
    }
}

/// Calls runtimes without decoding their answers.
pub struct WireProbe {
    grpc: tonic::client::Grpc<tonic::transport::Channel>,
    timeout: Duration,
}

impl WireProbe {
    /// A probe of the runtime at `unix:///…`; each call gets `timeout`.
    ///
    /// # Errors
    /// [`CriError::Endpoint`].
    pub fn new(endpoint: &str, timeout: Duration) -> Result<WireProbe, CriError> {
        let channel = connect::channel(&connect::socket_path(endpoint)?);
        Ok(WireProbe { grpc: tonic::client::Grpc::new(channel), timeout })
    }

    /// The answer of `service` (`RuntimeService`, `ImageService`) and `method` to `request`, undecoded.
    ///
    /// # Errors
    /// The runtime's status, or the transport's.
    pub async fn call(
        &mut self,
        service: &str,
        method: &str,
        request: &impl Message,
    ) -> Result<Vec<u8>, Status> {
        let path = PathAndQuery::try_from(format!("/runtime.v1.{service}/{method}"))
            .map_err(|e| Status::invalid_argument(e.to_string()))?;
        self.grpc.ready().await.map_err(|e| Status::unavailable(e.to_string()))?;
        let mut request = Request::new(request.encode_to_vec());
        request.set_timeout(self.timeout);
        Ok(self.grpc.unary(request, path, Bytes).await?.into_inner())
    }
}
