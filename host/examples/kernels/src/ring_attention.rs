//! Attention over a sequence that is divided among PEs: keys and values go around the ring of PEs while queries stay.

use congruent_device::{RowsMut, Slice, kernels};

use crate::attention::{Answer, FOURS, Row, SCALE};

/// What goes around the ring.
pub type Ring = congruent_fused::ring_attention::Ring<FOURS>;

kernels! { in crate::PTX;
    /// Every query meets the keys of all PEs. A row of `answers` is a head's; queries are in the same order.
    pub fn ring_attention(
        block, ctx, ring: Ring, queries: Slice<Row>, answers: RowsMut<Answer>
    ) launch_bounds(128, 3) {
        // SAFETY: the program has the ring for launches of this kernel alone, counts them, and fills the first bank when none is under way.
        unsafe {
            congruent_fused::ring_attention::ring_attention(block, ctx, ring, queries, &mut answers, SCALE);
        }
    }
}
