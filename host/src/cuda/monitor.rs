//! Looks at what kernels leave for the host while nobody waits for them, and after words that streams wait for, so that other PEs
//! hear of a fault within about a millisecond.

use std::io;
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::Duration;

use crate::shared::Shared;

/// From one look to the next.
const PERIOD: Duration = Duration::from_millis(1);

/// Starts to look after a world, until it is gone.
pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let weak = Arc::downgrade(shared);
    let name = format!("pe{} monitor", shared.pe());
    let looks = move || {
        while let Some(shared) = weak.upgrade() {
            shared.look_for_fault();
            shared.look_after_waits();
            drop(shared);
            thread::sleep(PERIOD);
        }
    };
    Builder::new().name(name).spawn(looks).map(|_ends_with_the_world| ())
}
