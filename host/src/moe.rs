//! Exchanges of tokens with experts on other PEs, as the host makes them.
#![cfg_attr(doctest, doc = include_str!("../../docs/moe.md"))]

use std::marker::PhantomData;
use std::sync::Arc;

use congruent_collectives::HasDatatype;
use congruent_collectives::moe::{
    Added, Combining, Dispatched, Idle, MoeConfig, MoeConfigError, MoeShape, MoeView, Received, Refusal, Step, Tokens,
};
use congruent_device::{KernelArg, Reduction, Sym, Tag, TeamView};
use congruent_moe_kernels as kernels;

use crate::comm::usual_blocks;
use crate::launch::Target;
use crate::launches::Launcher;
use crate::shared::Shared;
use crate::{AccessError, AllocError, CollectiveError, Grid, LaunchError, Plan, Stream, World};

/// An exchange of tokens between the members of a team: what it needs on the heap. Made by [`World::moe`].
///
/// Its steps are calls on a stream ([`idle`](Moe::idle)), or are taken by kernels, which are given its [`view`](Moe::view) and call the
/// [steps](congruent_collectives::moe) on it. Nothing of it is ever reset, and the host waits for nothing, so that launches are captured and
/// launched again.
pub struct Moe {
    shared: Arc<Shared>,
    plan: Plan<MoeShape>,
    team: TeamView,
    grid: Grid,
}

/// A micro-batch on its way through the steps of an exchange, each a call on a stream, of which `S` is next: [`Idle`], [`Dispatched`],
/// [`Received`] or [`Combining`]. Each step takes it and gives the next. Made by [`Moe::idle`].
///
/// # Ordering
/// Its steps go on one stream, or each behind an [`Event`](crate::Event) of the one before. Every step is launched in its turn by all
/// members; different micro-batches know nothing of each other.
///
/// # Errors
/// A step that gives an error, or a micro-batch that is dropped between two steps, leaves the exchange where it was on the device: calls
/// cannot take it up again, and the next [`Moe::idle`] of this index fails. A capture that fails has done nothing.
///
/// ```
/// use congruent::RowsByExpert;
/// use congruent::collectives::moe::{Added, MoeConfig, Tokens};
/// use congruent::device::Sym;
///
/// # congruent::local(2, |world| {
/// // Up to 16 tokens of 32 numbers on each PE, and 4 experts, of which each token has 2.
/// let config = MoeConfig::new(16, 4, 2).payload(128).output(128);
/// let (moe, most) = (world.moe(world.team(), config)?, config.most_rows(2, 8) as usize);
/// let (x, y) = (world.alloc::<f32>(16 * 32)?, world.alloc::<f32>(16 * 32)?);
/// let (experts, weights) = (world.alloc::<i32>(16 * 2)?, world.alloc::<f32>(16 * 2)?);
/// let (rows, starts) = (world.alloc::<f32>(most * 32)?, world.alloc::<u32>(3)?);
/// x.fill(3.0)?;
/// experts.write(0, &[1, 3].repeat(16))?;
/// weights.fill(0.5)?;
///
/// let stream = world.stream()?;
/// let (experts, weights) = (experts.view(), weights.view());
/// let tokens = Tokens { count: 16, payload: x.view().cast(), scales: Sym::empty(), experts, weights };
/// let by_expert = RowsByExpert { payload: rows.view().cast(), scales: Sym::empty(), starts: starts.view(), align: 8 };
/// let layer = world.capture(&stream, |stream| {
///     let sent = moe.idle(0)?.dispatch_send(stream, &tokens)?;
///     // What does not need the tokens of others is launched here.
///     let received = sent.dispatch_recv(stream, by_expert)?;
///     // Experts are launched here. These answer with what they are given.
///     let combining = received.combine_send(stream, rows.view())?;
///     combining.combine_recv(stream, y.view(), Added::Nothing).map(drop)
/// })?;
/// for _ in 0..3 {
///     layer.launch(&stream)?;
/// }
/// world.synchronize(&stream)?;
/// assert_eq!(y.to_vec()?, [3.0; 16 * 32]);
/// assert_eq!(starts.to_vec()?, [0, 0, 32]);     // of this PE's experts the second one has all 32 tokens
/// # Ok::<_, congruent::Error>(())
/// # })?;
/// # Ok::<_, congruent::Error>(())
/// ```
#[must_use = "a micro-batch in flight goes through all steps, on every PE"]
pub struct StreamBatch<'m, S> {
    moe: &'m Moe,
    /// The exchange as kernels have it, for rows of these sizes.
    view: MoeView,
    index: u32,
    /// How many tokens were sent.
    count: usize,
    /// Where the rows of each expert begin.
    starts: Sym<u32>,
    /// The most rows by expert.
    rows: usize,
    step: PhantomData<S>,
}

/// Where [`dispatch_recv`](StreamBatch::dispatch_recv) copies what has come: one row for each expert of a token that this PE has, by expert,
/// and of an expert by source and in the order that the tokens have there. Each micro-batch in flight has memory of its own for it, until
/// its [`combine_send`](StreamBatch::combine_send).
#[derive(Clone, Copy, Debug)]
pub struct RowsByExpert {
    /// Room for the payloads of [`MoeConfig::most_rows`] rows, one behind the other.
    pub payload: Sym<u8>,
    /// The same for their scales. Empty where there are none.
    pub scales: Sym<u8>,
    /// Is given the row that each of this PE's experts begins with, and behind them where the last one's end: one more than experts.
    /// [`combine_send`](StreamBatch::combine_send) reads it.
    pub starts: Sym<u32>,
    /// The rows of each expert begin at a multiple of this. Those left over before the next one's are zeros.
    pub align: u32,
}

/// What experts answer to calls on a stream: `f32`, `f16` or `bf16`. Kernels have others, too.
pub trait Answer: HasDatatype + sealed::Sealed {}

impl<T: HasDatatype + sealed::Sealed> Answer for T {}

mod sealed {
    use congruent_device::{bf16, f16};

    /// Keeps answers to what there are kernels for.
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f16 {}
    impl Sealed for bf16 {}
}

/// Why there is no exchange.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MoeError {
    /// What was asked for cannot be.
    #[error(transparent)]
    Config(#[from] MoeConfigError),
    /// Its memory on the heap.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The PEs did not come together, or with different configurations.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

impl Moe {
    /// The same exchange with a name, which faults call it by.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { plan: self.plan.named(name), ..self }
    }

    /// The same exchange with steps on streams in launches of this grid: up to as many blocks as the exchange was made for. PEs may have
    /// different ones, and results do not depend on it. Without it, as many blocks as the machine takes beside others, of 256 threads.
    #[must_use]
    pub fn with_grid(self, grid: Grid) -> Self {
        Self { grid, ..self }
    }

    /// The exchange as a kernel argument.
    pub fn view(&self) -> MoeView {
        self.plan.view()
    }

    /// What it is an exchange of.
    pub fn config(&self) -> &MoeConfig {
        self.plan.shape().config()
    }

    /// Micro-batch `index`, whose steps are calls on a stream. One that is on its way is refused by its next step's kernel, before that
    /// stores anything.
    ///
    /// # Errors
    /// [`LaunchError::NoSuchMicroBatch`].
    pub fn idle(&self, index: u32) -> Result<StreamBatch<'_, Idle>, LaunchError> {
        let fits = self.config().in_flight();
        if index >= fits {
            return Err(LaunchError::NoSuchMicroBatch { index, fits });
        }
        let (view, starts) = (self.view(), Sym::empty());
        Ok(StreamBatch { moe: self, view, index, count: 0, starts, rows: 0, step: PhantomData })
    }

    /// Why the last exchange of a micro-batch was refused, on all PEs alike; `None` where it was not.
    ///
    /// # Ordering
    /// None against kernels in flight: [`synchronize`](World::synchronize) first.
    ///
    /// # Errors
    /// Where there is no such micro-batch, or the machine has failed.
    pub fn refusal(&self, micro_batch: usize) -> Result<Option<Refusal>, AccessError> {
        let words = self.plan.shape().refused(micro_batch);
        let mut word = [0; 8];
        self.plan.read_scratch(words, &mut word)?;
        Ok(Refusal::from_word(u64::from_le_bytes(word)))
    }
}

impl<'m, S: Step> StreamBatch<'m, S> {
    #[track_caller]
    fn target<'t>(&self, stream: &'t Stream) -> Target<'t>
    where
        'm: 't,
    {
        Target { shared: &self.moe.shared, stream, grid: self.moe.grid, by: Launcher::call() }
    }

    fn next<N>(self) -> StreamBatch<'m, N> {
        let Self { moe, view, index, count, starts, rows, .. } = self;
        StreamBatch { moe, view, index, count, starts, rows, step: PhantomData }
    }
}

impl<'m> StreamBatch<'m, Idle> {
    /// Sends this PE's tokens: each once to each PE that has an expert of it. The stream goes on when they are on their way.
    ///
    /// # Collective
    /// Over the members, each of which has tokens of its own, or none.
    ///
    /// # Ordering
    /// Payload, scales, experts and weights may be overwritten by what the stream is given behind it.
    ///
    /// # Errors
    /// Where memory is shorter than `count` tokens need, and see [`LaunchError`]. More tokens than the exchange was made for, and other
    /// tokens that are wrong, are a [`Refusal`], which [`Moe::refusal`] gives on every PE.
    #[track_caller]
    pub fn dispatch_send(
        mut self,
        stream: &Stream,
        tokens: &Tokens<Sym<i32>, Sym<f32>>,
    ) -> Result<StreamBatch<'m, Dispatched>, LaunchError> {
        let (config, &Tokens { count, payload, scales, experts, weights }) = (self.moe.config(), tokens);
        long_enough("the tokens' payload", payload.len(), count, self.view.payload_bytes())?;
        long_enough("the tokens' scales", scales.len(), count, self.view.scales_bytes())?;
        long_enough("the tokens' experts", experts.len(), count, config.top_k())?;
        long_enough("the tokens' weights", weights.len(), count, config.top_k())?;
        self.count = count;
        let args = (self.view, self.index, count as u64, payload, scales, experts, weights);
        self.target(stream).launch(kernels::moe_dispatch_send, args)?;
        Ok(self.next())
    }
}

impl<'m> StreamBatch<'m, Idle> {
    /// The same micro-batch for rows of other sizes, in bytes, each up to what [`Moe::config`] has: those of gradients are others than those
    /// of tokens. Its steps keep to them until another size is given; every PE gives the same.
    ///
    /// # Errors
    /// [`LaunchError::RowsOfExchange`] where a size is larger, or there is no payload, or an output that 8 does not divide.
    pub fn with_rows(self, payload: usize, scales: usize, output: usize) -> Result<Self, LaunchError> {
        let made_for = self.moe.view();
        let view = made_for.with_rows(payload, scales, output).ok_or(LaunchError::RowsOfExchange {
            asked: [payload, scales, output],
            most: [made_for.payload_bytes(), made_for.scales_bytes(), made_for.output_bytes()],
        })?;
        Ok(Self { view, ..self })
    }

    /// Sends payloads, and scales, by the routes of the micro-batch's last exchange, which was of `count` tokens: nothing is counted, and
    /// experts and weights stay where they came with it. The members receive the bytes that [`dispatch_send`](StreamBatch::dispatch_send)
    /// with the same experts and weights would have sent.
    ///
    /// # Collective
    /// As [`dispatch_send`](StreamBatch::dispatch_send). Each member sends again or anew, as it likes.
    ///
    /// # Ordering
    /// Payload and scales may be overwritten by what the stream is given behind it.
    ///
    /// # Errors
    /// Where memory is shorter than `count` tokens need, and see [`LaunchError`]. Where no routes of so many tokens are kept, that is a
    /// [`Refusal`], which [`Moe::refusal`] gives on every PE.
    #[track_caller]
    pub fn dispatch_again(
        mut self,
        stream: &Stream,
        count: usize,
        payload: Sym<u8>,
        scales: Sym<u8>,
    ) -> Result<StreamBatch<'m, Dispatched>, LaunchError> {
        long_enough("the tokens' payload", payload.len(), count, self.view.payload_bytes())?;
        long_enough("the tokens' scales", scales.len(), count, self.view.scales_bytes())?;
        self.count = count;
        let args = (self.view, self.index, count as u64, payload, scales);
        self.target(stream).launch(kernels::moe_dispatch_again, args)?;
        Ok(self.next())
    }
}

impl<'m> StreamBatch<'m, Dispatched> {
    /// Waits on the stream until the tokens of all members are here, and copies them by expert. Where the exchange is refused there are no
    /// rows, and the steps behind it do nothing.
    ///
    /// # Collective
    /// As [`dispatch_send`](StreamBatch::dispatch_send).
    ///
    /// # Errors
    /// Where there is less room than [`RowsByExpert`] says, and see [`LaunchError`].
    #[track_caller]
    pub fn dispatch_recv(
        mut self,
        stream: &Stream,
        rows: RowsByExpert,
    ) -> Result<StreamBatch<'m, Received>, LaunchError> {
        let (config, team) = (self.moe.config(), self.moe.team);
        let RowsByExpert { payload, scales, starts, align } = rows;
        let most = config.most_rows(team.size() as u32, align) as usize;
        let experts = config.experts_of(team.me() as u32, team.size() as u32);
        long_enough("room for payloads by expert", payload.len(), most, self.view.payload_bytes())?;
        long_enough("room for scales by expert", scales.len(), most, self.view.scales_bytes())?;
        long_enough("room for where experts begin", starts.len(), experts.len() + 1, 1)?;
        // As of what is sent: an exchange without scales takes no notice of room for some.
        let scales = if self.view.scales_bytes() == 0 { Sym::empty() } else { scales };
        (self.starts, self.rows) = (starts, most);
        let args = (self.view, self.index, payload, scales, starts, align);
        self.target(stream).launch(kernels::moe_dispatch_recv, args)?;
        Ok(self.next())
    }
}

impl<'m> StreamBatch<'m, Received> {
    /// Sends back what the experts of this PE answered: of each token, the answers times their weights, summed in `f32` in the order of the
    /// token's choices, and rounded once to a `T`. An answer has the place of its row in [`RowsByExpert`], and as many bytes as
    /// [`MoeConfig::output`] says.
    ///
    /// # Collective
    /// As [`dispatch_send`](StreamBatch::dispatch_send), with the same type.
    ///
    /// # Ordering
    /// Answers may be overwritten by what the stream is given behind it.
    ///
    /// # Errors
    /// Where there is room for fewer answers than there may be rows by expert, and see [`LaunchError`].
    #[track_caller]
    pub fn combine_send<T: Answer>(
        self,
        stream: &Stream,
        answers: Sym<T>,
    ) -> Result<StreamBatch<'m, Combining>, LaunchError> {
        self.send_answers(stream, answers, true)
    }

    /// As [`combine_send`](StreamBatch::combine_send), without weights: gradients go back, in which the weights are where they belong.
    ///
    /// # Collective
    /// As [`combine_send`](StreamBatch::combine_send).
    ///
    /// # Ordering
    /// As [`combine_send`](StreamBatch::combine_send).
    ///
    /// # Errors
    /// As [`combine_send`](StreamBatch::combine_send).
    #[track_caller]
    pub fn combine_send_unweighted<T: Answer>(
        self,
        stream: &Stream,
        answers: Sym<T>,
    ) -> Result<StreamBatch<'m, Combining>, LaunchError> {
        self.send_answers(stream, answers, false)
    }

    #[track_caller]
    fn send_answers<T: Answer>(
        self,
        stream: &Stream,
        answers: Sym<T>,
        weighted: bool,
    ) -> Result<StreamBatch<'m, Combining>, LaunchError> {
        let row = self.view.output_bytes() / size_of::<T>();
        long_enough("the answers", answers.len(), self.rows, row)?;
        let args = (self.view, self.index, T::DATATYPE as u32, answers.cast(), self.starts, u32::from(weighted));
        self.target(stream).launch(kernels::moe_combine_send, args)?;
        Ok(self.next())
    }
}

impl<'m> StreamBatch<'m, Combining> {
    /// Waits on the stream until the answers of all members are here, and sums them to row `t` of `dst` for each token `t`: what came
    /// back from each PE in the order in which the token's choices first name the PEs, in `f32`, then what is `added`, rounded once.
    ///
    /// # Collective
    /// As [`combine_send`](StreamBatch::combine_send), with the same type.
    ///
    /// # Errors
    /// Where `dst`, or what is added, is shorter than the tokens need, and see [`LaunchError`].
    #[track_caller]
    pub fn combine_recv<T: Answer>(
        self,
        stream: &Stream,
        dst: Sym<T>,
        added: Added<T>,
    ) -> Result<StreamBatch<'m, Idle>, LaunchError> {
        let row = self.view.output_bytes() / size_of::<T>();
        long_enough("the sums", dst.len(), self.count, row)?;
        let (more, for_each) = match added {
            Added::Nothing => (Sym::empty(), 0),
            Added::Bias(bias) => {
                long_enough("the bias", bias.len(), 1, row)?;
                (bias, 0)
            }
            Added::Residual(rows) => {
                long_enough("the residual", rows.len(), self.count, row)?;
                (rows, 1)
            }
        };
        let args = (self.view, self.index, Reduction::sum::<T>(), dst.cast(), more.cast(), for_each);
        self.target(stream).launch(kernels::moe_combine_recv, args)?;
        Ok(self.next())
    }
}

/// Refuses memory that is shorter than so many rows of so many elements.
fn long_enough(what: &'static str, has: usize, rows: usize, each: usize) -> Result<(), LaunchError> {
    let needs = rows.saturating_mul(each);
    if has < needs { Err(LaunchError::TooShort { what, needs, has }) } else { Ok(()) }
}

impl World {
    /// Allocates what exchanges of tokens need: [`MoeConfig::bytes`] of the heap of each PE.
    ///
    /// ```
    /// use congruent::collectives::moe::MoeConfig;
    /// # congruent::local(2, |world| {
    /// let config = MoeConfig::new(16, 8, 2).payload(256).output(512);
    /// let moe = world.moe(world.team(), config)?.named("layer 1");
    /// # let _ = moe;
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Collective
    /// Over the world, also where the exchange is of a team: the heaps stay alike. Every PE gives the same configuration, and a team of
    /// which it is a member; all of these have one size.
    ///
    /// # Errors
    /// See [`MoeError`]: every PE gets the same.
    #[track_caller]
    pub fn moe<G: Tag>(&mut self, team: TeamView<G>, config: MoeConfig) -> Result<Moe, MoeError> {
        self.agree(format!("an exchange of {} PEs, {config:?}", team.size()))?;
        let team = team.untagged();
        let plan = self.plan(MoeShape::new(team, config, self.is_proxied())?)?;
        let shared = Arc::clone(self.shared());
        let most = usual_blocks(shared.machine()).min(shared.context().block_slots);
        let grid = Grid::new(most.min(plan.view().most_blocks()), 256);
        Ok(Moe { shared, plan, team, grid })
    }
}
