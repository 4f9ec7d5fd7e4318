//! Lanes of a warp together.

use crate::device::{Module, Numbers, Shape};

static WARPS: Module = Module::new("warps");

/// The lanes of a warp for which `holds`.
fn lanes(holds: impl Fn(usize) -> bool) -> u32 {
    (0..32).filter(|&lane| holds(lane)).fold(0, |mask, lane| mask | 1 << lane)
}

#[test]
fn compact() {
    WARPS.on_devices(|device| {
        let values = Numbers::new(21).list(192, |numbers| numbers.below(1000) as u32 + 1);
        let (input, output) = (device.buffer(&values), device.zeros::<u32>(192));
        let counts = device.zeros::<u32>(6);
        device.launch("compact", Shape::line(2, 96), &[&input, &output, &counts]);
        let kept = |part: &[u32]| part.iter().copied().filter(|value| value % 3 != 0).collect::<Vec<_>>();
        let parts: Vec<_> = values.chunks(32).map(kept).collect();
        assert_eq!(counts.read(), parts.iter().map(|part| part.len() as u32).collect::<Vec<_>>());
        for (found, part) in output.read().chunks(32).zip(&parts) {
            assert_eq!((&found[..part.len()], found[part.len()..].iter().sum()), (&part[..], 0_u32));
        }
    });
}

#[test]
fn equals() {
    WARPS.on_devices(|device| {
        let mut numbers = Numbers::new(22);
        for few in [2000, 6] {
            let narrow = numbers.list(32, |numbers| numbers.below(few) as u32);
            let wide = numbers.list(32, |numbers| numbers.below(5) << 32 | 7);
            let (input, longs) = (device.buffer(&narrow), device.buffer(&wide));
            let output = device.zeros::<u32>(160);
            device.launch("equals", Shape::line(1, 32), &[&input, &longs, &output]);
            let all = narrow.iter().all(|value| value / 1000 == narrow[0] / 1000);
            let expected = (0..32).flat_map(|lane| {
                let same = lanes(|other| narrow[other] == narrow[lane]);
                let same_wide = lanes(|other| wide[other] == wide[lane]);
                let half = if all { u32::MAX - 5 } else { 0 };
                [same, same_wide, half, same.trailing_zeros(), 31 - same.leading_zeros()]
            });
            assert_eq!(output.read(), expected.collect::<Vec<_>>());
        }
    });
}

#[test]
fn shuffles_of_some() {
    WARPS.on_devices(|device| {
        let values = Numbers::new(23).list(32, |numbers| numbers.below(200) as i32);
        let (input, output) = (device.buffer(&values), device.zeros::<i32>(128));
        device.launch("shuffles_of_some", Shape::line(1, 32), &[&input, &output]);
        let odd: Vec<usize> = (0..32).filter(|&lane| values[lane] % 2 == 1).collect();
        let result = |lane: usize| match odd.iter().position(|&other| other == lane) {
            Some(index) => values[odd[(index + 1) % odd.len()]],
            None => -values[lane],
        };
        let expected = (0..32).flat_map(|lane| {
            let rotated = lane / 8 * 8 + (lane + 1) % 8;
            let below = if lane % 16 >= 3 { lane - 3 } else { lane };
            let above = if lane % 4 + 2 < 4 { lane + 2 } else { lane };
            [rotated, below, above, lane ^ 9].map(result)
        });
        assert_eq!(output.read(), expected.collect::<Vec<_>>());
    });
}

#[test]
fn aggregated() {
    WARPS.on_devices(|device| {
        let values = Numbers::new(24).list(150, |numbers| numbers.below(1000) as u32);
        let (input, next) = (device.buffer(&values), device.zeros::<u32>(5));
        let places = device.buffer(&[u32::MAX; 160]);
        device.launch("aggregated", Shape::line(2, 80), &[&input, &next, &places, &150_u32]);
        let places = places.read();
        assert_eq!(places[150..], [u32::MAX; 10]);
        for bucket in 0..5 {
            // Which group comes first is the scheduler's choice; each has a place of its own.
            let mut found: Vec<u32> = (0..150).filter(|&i| values[i] % 5 == bucket).map(|i| places[i]).collect();
            found.sort_unstable();
            assert_eq!(found, (0..next.read()[bucket as usize]).collect::<Vec<_>>());
        }
        assert_eq!(next.read().iter().sum::<u32>(), 150);
    });
}

#[test]
fn in_groups() {
    WARPS.on_devices(|device| {
        let values = Numbers::new(25).list(64, |numbers| numbers.below(101) as i32 - 50);
        let (input, output) = (device.buffer(&values), device.zeros::<i32>(128));
        device.launch("in_groups", Shape::line(1, 64), &[&input, &output]);
        let fours = values.chunks(4).flat_map(|four| {
            let (any, all) = (four.iter().any(|&value| value > 40), four.iter().all(|&value| value > -40));
            [four.iter().sum::<i32>() * 8 + i32::from(any) * 2 + i32::from(all); 4]
        });
        let output = output.read();
        assert_eq!(output[..64], fours.collect::<Vec<_>>());
        // Lanes that go one way need not do so at once: each negative lane is in one group, all of which are consistent.
        for (warp, mates) in values.chunks(32).zip(output[64..].chunks(32)) {
            let negative: Vec<i32> = (0..32).filter(|&lane| warp[lane] < 0).map(|lane| mates[lane]).collect();
            assert!((0..32).all(|lane| (mates[lane] == -1) == (warp[lane] >= 0)));
            for size in 1..=32 {
                let mut ranks: Vec<i32> = negative.iter().filter(|&&m| m / 100 == size).map(|m| m % 100).collect();
                ranks.sort_unstable();
                let groups = ranks.len() as i32 / size;
                assert_eq!(ranks, (0..size).flat_map(|rank| vec![rank; groups as usize]).collect::<Vec<_>>());
            }
        }
    });
}

#[test]
fn warp_reductions() {
    WARPS.on_devices(|device| {
        let values = Numbers::new(26).list(32, |numbers| numbers.word() as u32);
        let (input, output) = (device.buffer(&values), device.zeros::<u32>(192));
        device.launch("warp_reductions", Shape::line(1, 32), &[&input, &output]);
        let reduced = |part: &[u32]| {
            let fold = |combine: fn(u32, u32) -> u32| part.iter().copied().reduce(combine).unwrap();
            [
                fold(|a, b| a & b),
                fold(|a, b| a | b),
                fold(|a, b| a ^ b),
                fold(u32::wrapping_add),
                fold(u32::min),
                fold(u32::max),
            ]
        };
        let expected = (0..32).flat_map(|lane| reduced(if lane < 20 { &values[..20] } else { &values[20..] }));
        assert_eq!(output.read(), expected.collect::<Vec<_>>());
    });
}

#[test]
fn transpose_bits() {
    WARPS.on_devices(|device| {
        let rows = Numbers::new(27).list(64, |numbers| numbers.word() as u32);
        let bits = device.buffer(&rows);
        device.launch("transpose_bits", Shape::line(2, 32), &[&bits]);
        let column = |i: usize| lanes(|row| rows[i / 32 * 32 + row] >> (i % 32) & 1 == 1);
        assert_eq!(bits.read(), (0..64).map(column).collect::<Vec<_>>());
    });
}
