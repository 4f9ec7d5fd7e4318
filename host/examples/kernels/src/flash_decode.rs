//! Attention of one query in each head over keys that are spread over the PEs: flash-decoding.

use congruent_device::{RowsMut, Slice, kernels};
use congruent_fused::attention::{Arrays, Four};
use congruent_fused::flash_decode::Heads;

use crate::attention::{FOURS, Row, SCALE};

/// How PEs give each other what they have computed of an answer. Head `h` of `n` PEs is of PE `h % n`.
pub type Decode = congruent_fused::flash_decode::Decode<FOURS>;

kernels! { in crate::PTX;
    /// A row of `answers` becomes the answer to the query of a head of this PE. Queries are those of all heads, and keys and values of a head
    /// lie behind those of the one before.
    pub fn flash_decode(
        block, ctx, decode: Decode, queries: Slice<Row>, keys: Slice<Row>, values: Slice<Row>, answers: RowsMut<Four>;
        shared: Arrays<FOURS>
    ) launch_bounds(128, 3) {
        let heads = Heads { queries, keys, values, scale: SCALE };
        congruent_fused::flash_decode::flash_decode(block, ctx, shared, decode, heads, &mut answers);
    }
}
