//! The rules of the model, by the number of their clause.

/// A rule of the PTX memory model, as a clause that a verdict may rest on.
///
/// What forbids an outcome are orders and axioms; what allows it are limits of theirs. [`Outcome::rules`] names those without
/// which the verdict would be the other: the checker leaves each out in turn and looks.
///
/// [`Outcome::rules`]: super::Outcome::rules
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// A strong operation acts only on threads in its scope.
    ScopesLimit,
    /// Addresses of one location, and other proxies, need proxy fences between them.
    AddressesAreProxies,
    /// Weak operations are morally strong with nothing of another thread.
    WeakOrdersNothing,
    /// Release patterns synchronize with acquire patterns.
    Patterns,
    /// Relaxed operations, alone, are neither.
    RelaxedOrdersNothing,
    /// A reduction is no acquire pattern.
    ReductionsAcquireNothing,
    /// An observation goes on through read-modify-writes.
    ObservationChains,
    /// Only `fence.sc` takes part in the Fence-SC order.
    OnlyScFencesMeet,
    /// Of two `fence.sc`, one synchronizes with the other.
    FencesSynchronize,
    /// Barriers synchronize.
    BarriersSynchronize,
    /// Synchronization goes on from thread to thread.
    Cumulativity,
    /// A proxy fence on the way makes an order between proxies.
    ProxyFences,
    /// Coherence.
    Coherence,
    /// Fence-SC.
    FenceSc,
    /// Atomicity.
    Atomicity,
    /// Program order alone does not forbid load buffering.
    LoadBuffering,
    /// Sequential consistency per location.
    ScPerLocation,
    /// Causality.
    Causality,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 18] = [
        Self::ScopesLimit,
        Self::AddressesAreProxies,
        Self::WeakOrdersNothing,
        Self::Patterns,
        Self::RelaxedOrdersNothing,
        Self::ReductionsAcquireNothing,
        Self::ObservationChains,
        Self::OnlyScFencesMeet,
        Self::FencesSynchronize,
        Self::BarriersSynchronize,
        Self::Cumulativity,
        Self::ProxyFences,
        Self::Coherence,
        Self::FenceSc,
        Self::Atomicity,
        Self::LoadBuffering,
        Self::ScPerLocation,
        Self::Causality,
    ];

    /// Whether it is a limit, which allows; the others forbid.
    pub const fn is_limit(self) -> bool {
        matches!(
            self,
            Self::ScopesLimit
                | Self::AddressesAreProxies
                | Self::WeakOrdersNothing
                | Self::RelaxedOrdersNothing
                | Self::ReductionsAcquireNothing
                | Self::OnlyScFencesMeet
                | Self::LoadBuffering
        )
    }

    /// Its clause in the PTX ISA's chapter "Memory Consistency Model", in the numbering of versions 9.
    pub const fn clause(self) -> &'static str {
        match self {
            Self::ScopesLimit => "8.5",
            Self::AddressesAreProxies => "8.6",
            Self::WeakOrdersNothing => "8.7",
            Self::Patterns | Self::RelaxedOrdersNothing | Self::ReductionsAcquireNothing => "8.8",
            Self::ObservationChains => "8.9.2",
            Self::OnlyScFencesMeet => "8.9.3",
            Self::FencesSynchronize | Self::BarriersSynchronize => "8.9.4",
            Self::Cumulativity | Self::ProxyFences => "8.9.5",
            Self::Coherence => "8.10.1",
            Self::FenceSc => "8.10.2",
            Self::Atomicity => "8.10.3",
            Self::LoadBuffering => "8.10.4",
            Self::ScPerLocation => "8.10.5",
            Self::Causality => "8.10.6",
        }
    }
}
