//! `NodeGetVolumeStats`, with the volume's condition.
//!
//! CSI 1.13 took the condition out of the protocol; most drivers are older and tell it. Its field number is reserved, so
//! an answer that has it cannot mean anything else.

use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::connection::{MAX_MESSAGE, Wire, origin};
use crate::proto::csi as pb;
use crate::proto::csi::volume_usage::Unit;
use crate::{ConditionSeen, UsageSeen, UsageUnit, VolumeStats};

/// `NodeGetVolumeStatsResponse` of CSI 1.3 to 1.12.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Answer {
    #[prost(message, repeated, tag = "1")]
    usage: Vec<pb::VolumeUsage>,
    #[prost(message, optional, tag = "2")]
    condition: Option<Condition>,
}

/// `VolumeCondition`.
#[derive(Clone, PartialEq, prost::Message)]
struct Condition {
    #[prost(bool, tag = "1")]
    abnormal: bool,
    #[prost(string, tag = "2")]
    message: String,
}

pub(crate) async fn ask(
    wire: Wire,
    request: Request<pb::NodeGetVolumeStatsRequest>,
) -> Result<Response<Answer>, Status> {
    let mut client = tonic::client::Grpc::with_origin(wire, origin()).max_decoding_message_size(MAX_MESSAGE);
    let path = http::uri::PathAndQuery::from_static("/csi.v1.Node/NodeGetVolumeStats");
    client.unary(request, path, ProstCodec::default()).await
}

pub(crate) fn seen(answer: Answer) -> VolumeStats {
    let usage = answer.usage.into_iter().map(|usage| UsageSeen {
        unit: match usage.unit() {
            Unit::Unknown => UsageUnit::Unknown,
            Unit::Bytes => UsageUnit::Bytes,
            Unit::Inodes => UsageUnit::Inodes,
        },
        total: usage.total,
        used: usage.used,
        available: usage.available,
    });
    VolumeStats {
        usage: usage.collect(),
        condition: answer.condition.map(|c| ConditionSeen { abnormal: c.abnormal, message: c.message }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn both_forms_are_read() {
        let usage = pb::VolumeUsage { available: 1, total: 3, used: 2, unit: Unit::Bytes.into() };
        let new = pb::NodeGetVolumeStatsResponse { usage: vec![usage] }.encode_to_vec();
        let read = seen(Answer::decode(&new[..]).expect("it is the newer form"));
        let bytes = UsageSeen { unit: UsageUnit::Bytes, total: 3, used: 2, available: 1 };
        assert_eq!(read, VolumeStats { usage: vec![bytes], condition: None });
        // Field 2: field 1 true, field 2 "bad".
        let old = [&new[..], &[0x12, 7, 0x08, 1, 0x12, 3, b'b', b'a', b'd']].concat();
        let read = seen(Answer::decode(&old[..]).expect("it is the older form"));
        assert_eq!(read.condition, Some(ConditionSeen { abnormal: true, message: "bad".into() }));
    }
}
