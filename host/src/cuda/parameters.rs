//! What a kernel takes, as its PTX declares it and as the host gives it: the driver does not compare them.

use congruent_device::abi;

use super::CudaError;
use super::functions::Functions;

/// Checks that a kernel's parameters in PTX have as many bytes as a context and these arguments.
pub(super) fn check(
    module: &'static str,
    functions: &Functions<'_>,
    kernel: &'static str,
    arguments: &[usize],
) -> Result<(), CudaError> {
    let Some(has) = declared(functions, kernel) else { return Ok(()) };
    // What has no bytes is no parameter.
    let given = arguments.iter().filter(|bytes| **bytes > 0);
    let needs: Vec<_> = [size_of::<abi::Context>()].iter().chain(given).copied().collect();
    if has == needs { Ok(()) } else { Err(CudaError::OtherPtx { module, kernel, has, needs }) }
}

/// Bytes of each parameter; nothing where there is no such kernel, or it declares what this does not know.
fn declared(functions: &Functions<'_>, kernel: &str) -> Option<Vec<usize>> {
    let (_, after) = functions.entry(kernel)?.split_once('(')?;
    let (list, _) = after.split_once(')')?;
    list.split(".param").skip(1).map(bytes).collect()
}

/// Of one parameter: `.align 8 .b8 name[80]`, or `.u64 name`.
fn bytes(parameter: &str) -> Option<usize> {
    let kind = parameter.split_whitespace().find_map(|word| {
        let bits = word.strip_prefix('.')?.trim_start_matches(char::is_alphabetic);
        bits.parse::<usize>().ok()
    })?;
    let count = match parameter.split_once('[') {
        Some((_, count)) => count.split_once(']')?.0.trim().parse().ok()?,
        None => 1,
    };
    Some(kind / 8 * count)
}

#[cfg(test)]
mod tests {
    use congruent_device::{Kernel, KernelArgs};
    use congruent_kernels as kernels;

    use super::*;

    fn declared_as_given<K: Kernel>(_kernel: K) {
        for (arch, text) in K::MODULE.unwrap().images {
            let functions = Functions::find(text);
            assert!(declared(&functions, K::NAME).is_some(), "{arch}");
            check("ours", &functions, K::NAME, K::Args::SIZES).unwrap();
        }
    }

    #[test]
    fn our_own_kernels_are_declared_as_the_host_gives_them() {
        declared_as_given(kernels::all_reduce_ring);
        declared_as_given(kernels::all_to_all_direct);
        declared_as_given(kernels::barrier);
        declared_as_given(kernels::send_recv_direct);
        declared_as_given(kernels::perf_put);
        declared_as_given(congruent_stream_kernels::add);
        declared_as_given(congruent_stream_kernels::notify);
        declared_as_given(congruent_stream_kernels::wait);
    }

    #[test]
    fn parameters_are_counted_in_bytes() {
        let text = ".visible .entry one(\n\t.param .align 8 .b8 a[80],\n .param .u64 b,\n.param .u32 c, .param .f32 d, \
                    .param .u16 e, .param .b8 f)\n{}\n.visible .entry two(){}\n.entry odd(.param .pred p) {}";
        let functions = Functions::find(text);
        assert_eq!(declared(&functions, "one"), Some(vec![80, 8, 4, 4, 2, 1]));
        assert_eq!(declared(&functions, "two"), Some(vec![]));
        assert_eq!((declared(&functions, "thr"), declared(&functions, "odd")), (None, None));
    }

    #[test]
    fn what_differs_is_refused_and_told() {
        let context = size_of::<abi::Context>();
        let text = format!(".entry one(.param .align 8 .b8 a[{context}], .param .u64 b) {{}}");
        let functions = Functions::find(&text);
        assert_eq!(check("m", &functions, "one", &[8]), Ok(()));
        assert_eq!(check("m", &functions, "one", &[0, 8, 0]), Ok(()));
        for given in [&[][..], &[4], &[8, 8]] {
            let refused = check("m", &functions, "one", given).unwrap_err();
            assert!(refused.to_string().contains(&format!("takes parameters of {context}, 8 bytes")), "{refused}");
        }
    }
}
