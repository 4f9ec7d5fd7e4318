//! Values that every thread of a group has: once for a block, and not in the registers of each.

use core::ops::Deref;

use crate::{Ctx, Group};

/// A group and its context: what a block's session holds, without bytes on a GPU.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Bound<'c, B> {
    group: B,
    #[cfg(not(target_arch = "nvptx64"))]
    ctx: &'c Ctx<'c>,
    #[cfg(target_arch = "nvptx64")]
    ctx: core::marker::PhantomData<&'c Ctx<'c>>,
}

impl<'c, B: Group> Bound<'c, B> {
    /// These.
    #[inline(always)]
    pub fn new(group: &B, ctx: &'c Ctx<'c>) -> Self {
        Self {
            group: *group,
            #[cfg(not(target_arch = "nvptx64"))]
            ctx,
            #[cfg(target_arch = "nvptx64")]
            ctx: {
                let _it_is_the_kernels = ctx;
                core::marker::PhantomData
            },
        }
    }

    /// The group.
    #[inline(always)]
    pub fn group(&self) -> &B {
        &self.group
    }

    /// The context.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    pub fn ctx(&self) -> &'c Ctx<'c> {
        self.ctx
    }

    /// The context.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub fn ctx(&self) -> &'c Ctx<'c> {
        const { assert!(size_of::<Ctx<'static>>() == 0) };
        // SAFETY: a value without bytes is anywhere, and there is one: `new` was given it.
        unsafe { core::ptr::NonNull::dangling().as_ref() }
    }
}

/// A value of a group's, the same for every thread.
#[doc(hidden)]
pub trait Kept<T>: Deref<Target = T> {
    /// Whether the leader alone changes it.
    const BY_LEADER: bool;
    /// Keeps a value, of which `begin` says what is looked at before it is changed, by a number of the leader's. The rest is as in
    /// `blank`, or what was there before. There is one at a time: the group has met since it looked at another.
    #[track_caller]
    fn new(group: &impl Group, leaders: u64, blank: T, begin: impl FnOnce(&mut T, u64)) -> Self;
    /// Changes it: every thread calls this with the same change, which may be made once. The group has met since it looked at what
    /// changes, and meets before it looks at it again.
    fn change(&mut self, group: &impl Group, change: impl FnOnce(&mut T));
}

/// Each thread's own copy.
#[doc(hidden)]
pub struct Own<T>(T);

impl<T> Deref for Own<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Kept<T> for Own<T> {
    const BY_LEADER: bool = false;
    #[inline(always)]
    fn new(group: &impl Group, leaders: u64, blank: T, begin: impl FnOnce(&mut T, u64)) -> Self {
        let mut own = Self(blank);
        begin(&mut own.0, group.broadcast(leaders));
        own
    }
    #[inline(always)]
    fn change(&mut self, _group: &impl Group, change: impl FnOnce(&mut T)) {
        change(&mut self.0);
    }
}

/// In the shared memory of a GPU's block: no register holds it, or what a compiler would compute from it before a loop.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub struct Shared<T>(core::marker::PhantomData<T>);

#[cfg(target_arch = "nvptx64")]
impl<T: congruent_heap::KernelArg> Deref for Shared<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `new` has put a value there, and any bytes are valid of a kernel's argument. It changes between barriers only.
        unsafe { &*crate::arch::kept::<T>() }
    }
}

#[cfg(target_arch = "nvptx64")]
impl<T: congruent_heap::KernelArg> Kept<T> for Shared<T> {
    const BY_LEADER: bool = true;
    #[inline(always)]
    fn new(group: &impl Group, leaders: u64, _blank: T, begin: impl FnOnce(&mut T, u64)) -> Self {
        if group.leader() {
            // SAFETY: the place is large enough, aligned, and the leader's since the group last met and until it meets here. Any bytes
            // are valid of a kernel's argument, so what is there before is a value.
            begin(unsafe { &mut *crate::arch::kept::<T>() }, leaders);
        }
        group.sync();
        Self(core::marker::PhantomData)
    }
    #[inline(always)]
    fn change(&mut self, group: &impl Group, change: impl FnOnce(&mut T)) {
        if group.leader() {
            // SAFETY: as in `new`; others look at no more than what does not change.
            change(unsafe { &mut *crate::arch::kept::<T>() });
        }
    }
}
