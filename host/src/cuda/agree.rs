//! PEs agree on every step that can fail in one of them.

use super::CudaError;
use crate::bootstrap::Control;

const WELL: u8 = 0;
const FAILED: u8 = 1;

/// Collective: every PE tells how its step went. If it went wrong anywhere, it fails on all PEs, with the failure of the
/// lowest PE that has one: by its own error there, as [`CudaError::Peer`] elsewhere.
pub(super) fn agree<T>(control: &Control, mine: Result<T, CudaError>) -> Result<T, CudaError> {
    let (value, told) = match mine {
        Ok(value) => (Ok(value), Ok(Vec::new())),
        Err(error) => (Err(error.clone()), Err(error)),
    };
    gather(control, told)?;
    value
}

/// Collective: as [`agree`], and every PE gets what each of them gives, in PE order.
pub(super) fn gather(control: &Control, mine: Result<Vec<u8>, CudaError>) -> Result<Vec<Vec<u8>>, CudaError> {
    let told = match &mine {
        Ok(bytes) => [&[WELL], &bytes[..]].concat(),
        Err(error) => [&[FAILED], error.to_string().as_bytes()].concat(),
    };
    let mut all = match control.all_gather(&told) {
        Ok(all) => all,
        // Others that have heard of this PE's failure may be gone before their answers are here.
        Err(lost) => return Err(mine.err().unwrap_or(lost.into())),
    };
    for (pe, told) in (0..).zip(&mut all) {
        match told.split_first() {
            Some((&WELL, _)) => drop(told.drain(..1)),
            _ if pe == control.pe() => return mine.map(|_| Vec::new()),
            told => {
                let message = told.map_or_else(String::new, |(_, text)| String::from_utf8_lossy(text).into_owned());
                return Err(CudaError::Peer { pe, message });
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::local;
    use std::thread;

    fn each<T: Send>(npes: usize, body: impl Fn(&Control) -> T + Sync) -> Vec<T> {
        let controls = local(npes).unwrap();
        thread::scope(|scope| {
            let running: Vec<_> = controls
                .iter()
                .map(|control| {
                    scope.spawn(|| {
                        let outcome = body(control);
                        control.depart();
                        outcome
                    })
                })
                .collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn what_each_gives_comes_in_order() {
        let all = each(3, |control| gather(control, Ok(vec![control.pe() as u8; control.pe() as usize])));
        assert_eq!(all, vec![Ok(vec![vec![], vec![1], vec![2, 2]]); 3]);
    }

    #[test]
    fn all_fail_for_the_first_that_failed() {
        let failed = each(4, |control| match control.pe() {
            1 => agree(control, Err::<u32, _>(CudaError::NoAddress { bytes: 1 })),
            2 => agree(control, Err(CudaError::NoDevice)),
            pe => agree(control, Ok(pe)),
        });
        let own = CudaError::NoAddress { bytes: 1 };
        let told = CudaError::Peer { pe: 1, message: own.to_string() };
        assert_eq!(failed, [Err(told.clone()), Err(own), Err(told.clone()), Err(told)]);
    }

    #[test]
    fn a_step_that_goes_well_everywhere_keeps_its_values() {
        assert_eq!(each(2, |control| agree(control, Ok(control.pe()))), [Ok(0), Ok(1)]);
    }
}
