//! A step on a stream takes its micro-batch: one that is on its way is received before it is sent again.
use congruent::collectives::moe::Tokens;
use congruent::device::Sym;
use congruent::{LaunchError, Moe, Stream};

fn twice(moe: &Moe, stream: &Stream) -> Result<(), LaunchError> {
    let experts = Sym::empty();
    let tokens = Tokens { count: 0, payload: Sym::empty(), scales: Sym::empty(), experts, weights: Sym::empty() };
    let idle = moe.idle(0)?;
    let _sent = idle.dispatch_send(stream, &tokens)?;
    let _again = idle.dispatch_send(stream, &tokens)?;
    Ok(())
}

fn main() {}
