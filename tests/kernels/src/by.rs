//! Which group does an operation, as a kernel argument.

use congruent_device::kernel_arg;

kernel_arg! {
    /// Who does it.
    #[derive(Debug, PartialEq, Eq)]
    pub enum By {
        /// Every thread of the block together.
        Block = 0,
        /// The block's first warp; the others look on.
        Warp = 1,
        /// The block's first thread; the others look on.
        Thread = 2,
    }
}

impl By {
    /// Every kind of group.
    pub const ALL: [Self; 3] = [Self::Block, Self::Warp, Self::Thread];
}

/// Does `body` as the group that `by` names. Groups are of different types, so `body` is compiled once for each.
macro_rules! as_group {
    ($by:expr, $block:expr, |$group:ident| $body:expr) => {
        match $by {
            $crate::By::Block => {
                let $group = $block;
                $body
            }
            $crate::By::Warp if $block.warp_index() == 0 => {
                let $group = &$block.warp();
                $body
            }
            $crate::By::Thread if congruent_device::Group::leader($block) => {
                let $group = &congruent_device::Thread;
                $body
            }
            _ => {}
        }
    };
}
pub(crate) use as_group;
