//! What the entries of a kind have in common: the kernels, and what the host knows them by. Buffers are bytes.

/// Reductions. Type and operator are an argument.
macro_rules! reductions {
    (in $module:expr; ($block:ident, $ctx:ident, $dst:ident, $src:ident, $op:ident, $root:ident, $plan:ident)
        $($(#[$doc:meta])* $name:ident: $algorithm:ident::$operation:ident($($arg:ident),*) is $descriptor:ident;)*
    ) => {
        #[cfg(not(target_arch = "nvptx64"))]
        pub(crate) fn reductions(visit: &mut impl crate::Visit) {
            $(visit.reduction(&$algorithm::$descriptor, &$name);)*
        }

        kernels! { in $module; $(
            $(#[$doc])*
            pub fn $name(
                $block, $ctx, $dst: Sym<u8>, $src: Sym<u8>, $op: Reduction, $root: u32, $plan: PlanView, rounds: u32,
            ) {
                let $root = $root as usize;
                $plan.repeat($block, $ctx, rounds, ($dst, $src), |coll, $dst, $src| {
                    $algorithm::$operation(coll, $($arg),*);
                });
                let _not_all_have_one = $root;
            }
        )* }
    };
}

/// Collectives that move data and compute nothing.
macro_rules! moves {
    (in $module:expr; ($block:ident, $ctx:ident, $dst:ident, $src:ident, $root:ident, $plan:ident)
        $($(#[$doc:meta])* $name:ident: $algorithm:ident::$operation:ident($($arg:ident),*) is $descriptor:ident;)*
    ) => {
        #[cfg(not(target_arch = "nvptx64"))]
        pub(crate) fn moves(visit: &mut impl crate::Visit) {
            $(visit.movement(&$algorithm::$descriptor, &$name);)*
        }

        kernels! { in $module; $(
            $(#[$doc])*
            pub fn $name(
                $block, $ctx, $dst: Sym<u8>, $src: Sym<u8>, $root: u32, $plan: PlanView, rounds: u32,
            ) {
                let $root = $root as usize;
                $plan.repeat($block, $ctx, rounds, ($dst, $src), |coll, $dst, $src| {
                    $algorithm::$operation(coll, $($arg),*);
                });
                let _not_all_have_one = $root;
            }
        )* }
    };
}
