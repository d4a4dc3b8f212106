//! Calls whose answers take a bounded amount of memory.
//!
//! In: a request. Out: the answer, or a status. Invariants: an answer is measured before it is decoded; one that is too large in bytes or
//! in memory is an error with both numbers, and nothing of it is kept. Upstream limits the bytes only.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf as _;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::memory::{Shape, memory};

/// An answer of a plugin.
pub(crate) trait Bounded: Message + Default + 'static {
    /// Largest message, bytes.
    const BYTES_MAX: usize;
    /// Most memory of a message, bytes.
    const MEMORY_MAX: usize;
    /// Where its memory is.
    const SHAPE: Shape;
}

/// Calls a method with one answer.
pub(crate) async fn unary<Q: Message + 'static, A: Bounded>(
    channel: Channel,
    path: &'static str,
    request: Request<Q>,
) -> Result<Response<A>, Status> {
    let mut client = client::<A>(channel).await?;
    client.unary(request, PathAndQuery::from_static(path), BoundedCodec::<Q, A>(PhantomData)).await
}

/// Calls a method with a stream of answers.
pub(crate) async fn streaming<Q: Message + 'static, A: Bounded>(
    channel: Channel,
    path: &'static str,
    request: Request<Q>,
) -> Result<Streaming<A>, Status> {
    let mut client = client::<A>(channel).await?;
    let codec = BoundedCodec::<Q, A>(PhantomData);
    client.server_streaming(request, PathAndQuery::from_static(path), codec).await.map(Response::into_inner)
}

async fn client<A: Bounded>(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut client = Grpc::new(channel).max_decoding_message_size(A::BYTES_MAX);
    client.ready().await.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
    Ok(client)
}

/// Measures an answer.
fn check<A: Bounded>(bytes: &[u8]) -> Result<(), Status> {
    let memory = memory(bytes, A::SHAPE);
    if memory > A::MEMORY_MAX {
        return Err(Status::resource_exhausted(format!(
            "a message of {} bytes would take up to {memory} bytes of memory, and at most {} are accepted",
            bytes.len(),
            A::MEMORY_MAX
        )));
    }
    Ok(())
}

struct BoundedCodec<Q, A>(PhantomData<fn(Q) -> A>);

impl<Q: Message + 'static, A: Bounded> Codec for BoundedCodec<Q, A> {
    type Encode = Q;
    type Decode = A;
    type Encoder = PlainEncoder<Q>;
    type Decoder = BoundedDecoder<A>;

    fn encoder(&mut self) -> PlainEncoder<Q> {
        PlainEncoder(PhantomData)
    }

    fn decoder(&mut self) -> BoundedDecoder<A> {
        BoundedDecoder(PhantomData)
    }
}

struct PlainEncoder<Q>(PhantomData<fn(Q)>);

impl<Q: Message> Encoder for PlainEncoder<Q> {
    type Item = Q;
    type Error = Status;

    fn encode(&mut self, request: Q, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        request.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

struct BoundedDecoder<A>(PhantomData<fn() -> A>);

impl<A: Bounded> Decoder for BoundedDecoder<A> {
    type Item = A;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<A>, Status> {
        // The buffer has one whole message, so this copies nothing.
        let length = from.remaining();
        let bytes = from.copy_to_bytes(length);
        check::<A>(&bytes)?;
        A::decode(bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
