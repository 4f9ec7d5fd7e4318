//! Control flow, calls and local memory.

use crate::device::{Module, Numbers, Shape};

static CONTROL: Module = Module::new("control");

#[test]
fn collatz() {
    CONTROL.on_devices(|device| {
        let mut values: Vec<u64> = (1..=90).collect();
        values.extend([27, 1 << 40, 837_799, u64::from(u32::MAX)]);
        let n = values.len();
        let (input, output) = (device.buffer(&values), device.buffer(&vec![7_u32; 96]));
        device.launch("collatz", Shape::line(3, 32), &[&input, &output, &300_u32, &(n as u32)]);
        let steps = |&start: &u64| {
            let taken = core::iter::successors(Some(start), |&value| {
                (value != 1).then(|| if value % 2 == 1 { 3 * value + 1 } else { value / 2 })
            });
            let taken = taken.count() as u32 - 1;
            if taken > 300 { u32::MAX } else { taken }
        };
        let output = output.read();
        assert_eq!(output[..n], values.iter().map(steps).collect::<Vec<_>>());
        assert!(output[n..].iter().all(|&untouched| untouched == 7));
    });
}

#[test]
fn stack_machine() {
    let run = |program: &[u8]| {
        let mut stack: [i32; 16] = [0; 16];
        let mut depth = 0_usize;
        let push = |stack: &mut [i32; 16], depth: &mut usize, value: i32| {
            stack[*depth & 15] = value;
            *depth += 1;
        };
        for &code in program {
            if code < 100 {
                push(&mut stack, &mut depth, i32::from(code));
                continue;
            }
            let (top, second) = (stack[depth.wrapping_sub(1) & 15], stack[depth.wrapping_sub(2) & 15]);
            let binary = match code {
                100 => Some(second.wrapping_add(top)),
                101 => Some(second.wrapping_sub(top)),
                102 => Some(second.wrapping_mul(top)),
                103 => Some(if top == 0 { 0 } else { second.wrapping_div(top) }),
                107 => Some(second << (top & 7)),
                _ => None,
            };
            match code {
                104 => push(&mut stack, &mut depth, top),
                105 => (stack[(depth - 1) & 15], stack[(depth - 2) & 15]) = (second, top),
                106 => stack[(depth - 1) & 15] = top.wrapping_neg(),
                108 => return top,
                _ => {
                    depth -= 1;
                    if let Some(value) = binary {
                        stack[(depth - 1) & 15] = value;
                    }
                }
            }
            if depth < 2 {
                push(&mut stack, &mut depth, 1);
                push(&mut stack, &mut depth, 2);
            }
        }
        stack[(depth - 1) & 15].wrapping_add(1000)
    };
    CONTROL.on_devices(|device| {
        let code = |numbers: &mut Numbers| match numbers.below(5) {
            0 | 1 => numbers.below(100) as u8,
            _ => 100 + numbers.below(10) as u8,
        };
        let mut programs = Numbers::new(31).list(64 * 40, code);
        programs.chunks_mut(40).for_each(|program| program[..2].copy_from_slice(&[3, 5]));
        let (input, output) = (device.buffer(&programs), device.zeros::<i32>(64));
        device.launch("stack_machine", Shape::line(2, 32), &[&input, &output, &40_u32]);
        assert_eq!(output.read(), programs.chunks(40).map(run).collect::<Vec<_>>());
    });
}

#[test]
fn calls_by_table() {
    CONTROL.on_devices(|device| {
        let mut numbers = Numbers::new(32);
        let [a, b] = [(); 2].map(|()| numbers.list(96, |numbers| numbers.word() as i32));
        let (left, right, output) = (device.buffer(&a), device.buffer(&b), device.zeros::<i32>(96));
        device.launch("calls_by_table", Shape::line(1, 96), &[&left, &right, &output]);
        let table: [fn(i32, i32) -> i32; 4] = [i32::wrapping_add, i32::wrapping_sub, i32::wrapping_mul, i32::max];
        let value = |i: usize| {
            let value = table[i % 4](a[i], b[i]);
            if i.is_multiple_of(3) { table[i / 4 % 4](value, i as i32) } else { value }
        };
        assert_eq!(output.read(), (0..96).map(value).collect::<Vec<_>>());
    });
}

#[test]
fn recursion() {
    CONTROL.on_devices(|device| {
        let output = device.zeros::<u32>(24);
        device.launch("recursion", Shape::line(1, 24), &[&output]);
        // What the function is for these arguments, in closed form.
        let value = |i: u32| [i / 3 + 1, i / 3 + 2, 2 * (i / 3) + 3][i as usize % 3];
        assert_eq!(output.read(), (0..24).map(value).collect::<Vec<_>>());
    });
}

#[test]
fn queens() {
    CONTROL.on_devices(|device| {
        for (n, ways) in [(4, 2), (6, 4), (7, 40)] {
            let total = device.zeros::<u32>(1);
            device.launch("queens", Shape::line(1, 32), &[&(n as u32), &total]);
            assert_eq!(total.read(), [ways]);
        }
    });
}

#[test]
fn mandelbrot() {
    CONTROL.on_devices(|device| {
        let (width, height) = (60_u32, 45_u32);
        let output = device.zeros::<u16>((width * height) as usize);
        device.launch("mandelbrot", Shape::plane([4, 6], [16, 8]), &[&output, &width, &height, &50_u32]);
        let count = |i: u32| {
            let (real, imaginary) = ((i % width) as f32 * (3.0 / 64.0) - 2.0, (i / width) as f32 * (2.5 / 48.0) - 1.25);
            let (mut a, mut b) = (0.0_f32, 0.0_f32);
            for count in 0..50 {
                if a * a + b * b > 4.0 {
                    return count;
                }
                (a, b) = (a * a - b * b + real, 2.0 * a * b + imaginary);
            }
            50
        };
        assert_eq!(output.read(), (0..width * height).map(count).collect::<Vec<u16>>());
    });
}

#[test]
fn mazes() {
    let n = 40;
    let walk = |values: &[i32], me: usize| {
        if me % 96 / 32 % 2 == 1 && values[me] < 0 {
            return -1;
        }
        let mut sum = 0;
        for i in 0..n {
            if values[(me + i) % n] % 7 == 3 {
                continue;
            }
            for j in i..n {
                let mut value = values[(i * j + me) % n];
                if value % 11 == 0 {
                    break;
                }
                if value == 77 {
                    return sum;
                }
                loop {
                    sum += value & 3;
                    value /= 2;
                    if value <= 8 || sum % 5 == 0 {
                        break;
                    }
                }
            }
            if sum > 2000 {
                return sum;
            }
        }
        -sum
    };
    CONTROL.on_devices(|device| {
        let mut values = Numbers::new(33).list(192, |numbers| numbers.below(400) as i32 - 20);
        values[17] = 77;
        let (input, output) = (device.buffer(&values), device.zeros::<i32>(192));
        device.launch("mazes", Shape::line(2, 96), &[&input, &output, &(n as u32)]);
        assert_eq!(output.read(), (0..192).map(|me| walk(&values, me)).collect::<Vec<_>>());
    });
}

/// Fills in a board by trying digits in their order, counting each digit looked at; tells whether there is a way.
fn solve(cells: &mut [u8], tries: &mut u32) -> bool {
    let Some(hole) = cells.iter().position(|&cell| cell == 0) else { return true };
    let square = |i: usize| i / 27 * 3 + i % 9 / 3;
    for digit in 1..=9 {
        *tries += 1;
        let sees = |&(i, &cell): &(usize, &u8)| {
            cell == digit && (i / 9 == hole / 9 || i % 9 == hole % 9 || square(i) == square(hole))
        };
        if cells.iter().enumerate().any(|cell| sees(&cell)) {
            continue;
        }
        cells[hole] = digit;
        if solve(cells, tries) {
            return true;
        }
        cells[hole] = 0;
    }
    // The kernel looks at 10, and sees that it is no digit.
    *tries += 1;
    false
}

#[test]
fn sudoku() {
    // A pattern in which every row, column and square has each digit, renamed and with holes.
    let board = |seed: u64| {
        let mut numbers = Numbers::new(seed);
        let shift = numbers.below(9) as usize;
        let cell = |i: usize| ((i / 9 * 3 + i / 27 + i % 9 + shift) % 9 + 1) as u8;
        (0..81).map(|i| if numbers.below(10) < 4 { 0 } else { cell(i) }).collect::<Vec<u8>>()
    };
    let boards: Vec<u8> = (0..32).flat_map(board).collect();
    let mut expected = boards.clone();
    let tries: Vec<u32> = expected
        .chunks_mut(81)
        .map(|board| {
            let mut tries = 0;
            assert!(solve(board, &mut tries));
            tries
        })
        .collect();
    CONTROL.on_devices(|device| {
        let (input, solved) = (device.buffer(&boards), device.zeros::<u8>(boards.len()));
        let tried = device.zeros::<u32>(32);
        device.launch("sudoku", Shape::line(1, 32), &[&input, &solved, &tried]);
        assert_eq!(solved.read(), expected);
        assert_eq!(tried.read(), tries);
    });
}
