//! A counter that two PEs bounce.

use congruent_device::{Group, Semaphore, Sym, kernels};

kernels! { in crate::PTX;
    /// Bounces `ball` between PE 0 and PE 1; each adds 1 before it sends the ball on.
    pub fn ping_pong(block, ctx, ball: Sym<u64>, turn: Sym<Semaphore>, rounds: u64) {
        let team = ctx.world();
        let (peer, first) = (team.next(), team.me().index() == 0);
        for _ in 0..rounds {
            if !first {
                ctx.wait(block, turn.from_rank(peer), 1);
            }
            if block.leader() {
                ctx.store(ball, 0, ctx.load(ball, 0) + 1);
            }
            block.sync();
            ctx.put_signal(block, ball.at(peer), ball, turn.at(peer).post());
            if first {
                ctx.wait(block, turn.from_rank(peer), 1);
            }
        }
    }
}
