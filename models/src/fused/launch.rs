//! Launches of the CUDA kernels.

use std::sync::{Arc, OnceLock};

use candle_core::cuda_backend::cudarc::cublas::{
    result::gemm_ex,
    sys::{cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType_t},
};
use candle_core::cuda_backend::cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut,
    LaunchArgs, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::cudarc::nvrtc::compile_ptx;
use candle_core::cuda_backend::{CudaDevice, CudaStorage, WrapErr, gemm_reduced_precision_f32};
use candle_core::{Error, Layout, Result};

use super::columns::{Columns, ROWS};
use crate::kernels::conv_sizes::Sizes;
use crate::kernels::counts;
use crate::kernels::operand::range;
use crate::kernels::optimizer::{AdamWFactors, AdamWStep, SgdStep};
use crate::parameters::Running;

/// An array on a GPU.
pub(super) type Array = CudaSlice<f32>;

/// A part of one.
pub(crate) type View<'a> = CudaView<'a, f32>;

/// A part of one that is changed.
pub(crate) type ViewMut<'a> = CudaViewMut<'a, f32>;

/// Threads of a block.
const BLOCK: u32 = 256;

/// The most blocks of a grid: enough for any GPU; a thread then takes several elements.
const BLOCKS: u32 = 1 << 16;

/// The most shares that rows are summed in: with blocks of 32 channels they keep a large GPU busy.
const SHARES: usize = 128;

/// The kernels, compiled once in a process.
static PTX: OnceLock<std::result::Result<String, String>> = OnceLock::new();

/// A kernel, and the stream that its launches are put on.
struct Function {
    function: CudaFunction,
    stream: Arc<CudaStream>,
}

impl Function {
    /// A launch that has no arguments yet.
    fn builder(&self) -> LaunchArgs<'_> {
        self.stream.launch_builder(&self.function)
    }
}

/// A GPU, and the stream that its work is put on.
pub(crate) struct Gpu<'a>(&'a CudaDevice);

impl<'a> Gpu<'a> {
    /// That of candle.
    pub(crate) fn new(device: &'a CudaDevice) -> Self {
        Self(device)
    }

    /// That which holds a tensor.
    pub(crate) fn holding(storage: &'a CudaStorage) -> Self {
        Self(&storage.device)
    }

    /// The elements of a contiguous operand.
    ///
    /// # Errors
    /// Another type, a layout that is not contiguous, or sizes whose product wraps.
    pub(crate) fn view<'s>(storage: &'s CudaStorage, layout: &Layout) -> Result<View<'s>> {
        Ok(storage.as_cuda_slice::<f32>()?.slice(range::<f32>(layout)?))
    }

    /// The same of an operand that is changed in place.
    pub(crate) fn view_mut<'s>(
        storage: &'s mut CudaStorage,
        layout: &Layout,
    ) -> Result<ViewMut<'s>> {
        Ok(storage.as_cuda_slice_mut::<f32>()?.slice_mut(range::<f32>(layout)?))
    }

    /// What candle is given as a result.
    pub(super) fn storage(&self, array: Array) -> CudaStorage {
        CudaStorage::wrap_cuda_slice(array, self.0.clone())
    }

    /// An array for a kernel to fill.
    pub(super) fn array(&self, count: usize) -> Result<Array> {
        // SAFETY: nobody reads an array here before a kernel or a copy has written all that is read of it.
        unsafe { self.0.alloc(count) }
    }

    fn function(&self, name: &str) -> Result<Function> {
        let compile = || compile_ptx(include_str!("kernels.cu")).map(|ptx| ptx.to_src());
        let ptx = PTX.get_or_init(|| compile().map_err(|error| error.to_string()));
        let ptx = ptx.as_ref().map_err(|error| {
            Error::Msg(format!("compiling the kernels of GPUs by NVRTC: {error}"))
        })?;
        let function = self.0.get_or_load_custom_func(name, "gradwire", ptx)?;
        Ok(Function { function: function.into_cuda_function(), stream: self.0.cuda_stream() })
    }

    /// The product of matrices, row after row: `a [m, k]` times `b [k, n]`; see
    /// [`allow_tf32`](crate::gpu::allow_tf32).
    pub(super) fn product(
        &self,
        a: &View,
        b: &View,
        (m, k, n): (usize, usize, usize),
    ) -> Result<Array> {
        let long = |values: &View, rows: usize, columns: usize| {
            counts::elements(&[rows, columns]) == Some(values.len())
        };
        if !long(a, m, k) || !long(b, k, n) {
            candle_core::bail!(
                "a product of [{m}, {k}] and [{k}, {n}] is not one of {} and {} elements",
                a.len(),
                b.len()
            );
        }
        let mut to = self.array(m * n)?;
        let size = |size: usize| i32::try_from(size).map_err(|_| too_large(size));
        let (m, k, n) = (size(m)?, size(k)?, size(n)?);
        // cuBLAS counts column after column: its matrices are ours transposed, and so is its product.
        let none = cublasOperation_t::CUBLAS_OP_N;
        let (f32s, any) = (cudaDataType_t::CUDA_R_32F, cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT);
        let precision = if gemm_reduced_precision_f32() {
            cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            cublasComputeType_t::CUBLAS_COMPUTE_32F
        };
        let (one, zero) = (1f32, 0f32);
        let (blas, stream) = (self.0.cublas_handle(), self.0.cuda_stream());
        let (a, _a) = a.device_ptr(&stream);
        let (b, _b) = b.device_ptr(&stream);
        let (c, c_in_use) = to.device_ptr_mut(&stream);
        // SAFETY: the arrays are as long as the sizes say, `to` included; it is written whole, for its factor is 0.
        unsafe {
            let (one, zero) = ((&raw const one).cast(), (&raw const zero).cast());
            let (a, b, c) = (a as *const _, b as *const _, c as *mut _);
            let handle = *blas.handle();
            gemm_ex(
                handle, none, none, n, m, k, one, b, f32s, n, a, f32s, k, zero, c, f32s, n,
                precision, any,
            )
        }
        .w()?;
        drop(c_in_use);
        Ok(to)
    }

    /// The windows of a convolution of `xs`.
    pub(super) fn windows(&self, of: &Sizes, xs: &View) -> Result<Array> {
        let windows = of.batch * of.out_height() * of.out_width();
        let taps = of.kernel.0 * of.kernel.1 * of.inputs;
        self.images("windows", of, xs, (windows, taps))
    }

    /// The sums of each pixel's places in the windows `xs` of a convolution.
    pub(super) fn fold(&self, of: &Sizes, xs: &View) -> Result<Array> {
        self.images("fold", of, xs, (of.batch * of.height * of.width, of.inputs))
    }

    /// `windows` or `fold`, to so many rows of so many elements.
    fn images(
        &self,
        kernel: &str,
        of: &Sizes,
        xs: &View,
        (rows, width): (usize, usize),
    ) -> Result<Array> {
        let Some(count) = counts::elements(&[rows, width]) else {
            candle_core::bail!("{kernel}: no memory has {rows} rows of {width}");
        };
        let mut to = self.array(count)?;
        let sizes = [
            of.height,
            of.width,
            of.inputs,
            of.out_height(),
            of.out_width(),
            of.kernel.0,
            of.kernel.1,
            of.stride,
            of.padding,
        ];
        let sizes = sizes.into_iter().map(number).collect::<Result<Vec<_>>>()?;
        let (function, rows) = (self.function(kernel)?, number(rows)?);
        let mut launch = function.builder();
        launch.arg(&rows).arg(xs).arg(&mut to);
        sizes.iter().for_each(|size| {
            launch.arg(size);
        });
        // As many threads beside each other as a row has elements, up to a warp; the others take other rows.
        let lanes = number(width)?.min(32).next_power_of_two();
        let block_dim = (lanes, BLOCK / lanes, 1);
        let grid_dim = (rows.div_ceil(block_dim.1).clamp(1, BLOCKS), 1, 1);
        // SAFETY: the arguments are those of the kernel, by number and type. It reads `xs` where the sizes that `to` and
        // `xs` were counted by place a pixel, and writes `rows` rows of `to`.
        unsafe { run(launch, grid_dim, block_dim) }?;
        Ok(to)
    }

    /// `pick_rows` of a table with rows of that width. Its rows have all the numbers.
    pub(super) fn pick_rows(&self, table: &View, numbers: &[u32], width: usize) -> Result<Array> {
        let picks = numbers.len();
        let Some(count) = counts::elements(&[picks, width]) else {
            candle_core::bail!("no memory has {picks} rows of {width}");
        };
        let mut to = self.array(count)?;
        let numbers = self.0.clone_htod(numbers)?;
        let (function, columns) = (self.function("pick_rows")?, number(width)?);
        let mut launch = function.builder();
        launch.arg(&columns).arg(&numbers).arg(table).arg(&mut to);
        // SAFETY: the arguments are those of the kernel, by number and type. Its grid has a block for each number, the
        // table has a row of each, and `to` a row for each.
        unsafe { by_row(launch, picks, columns) }?;
        Ok(to)
    }

    /// `sum_rows` of the gradients of picks, to so many elements: numbers, starts and picks are those of the kernel.
    pub(super) fn sum_rows(
        &self,
        width: usize,
        lists: [&[u32]; 3],
        gradients: &View,
        count: usize,
    ) -> Result<Array> {
        let mut to = self.0.alloc_zeros::<f32>(count)?;
        let rows = lists[0].len();
        if rows == 0 {
            return Ok(to);
        }
        let [numbers, starts, picks] = lists.map(|list| self.0.clone_htod(list));
        let (numbers, starts, picks) = (numbers?, starts?, picks?);
        let (function, width) = (self.function("sum_rows")?, number(width)?);
        let mut launch = function.builder();
        launch.arg(&width).arg(&numbers).arg(&starts).arg(&picks).arg(gradients).arg(&mut to);
        // SAFETY: the arguments are those of the kernel, by number and type. Its grid has a block for each number, `to` has
        // a row of each, `starts` one entry more, which are places in `picks`, and `gradients` has a row of each pick.
        unsafe { by_row(launch, rows, width) }?;
        Ok(to)
    }

    /// `batch_table` of the input, γ and β.
    pub(super) fn batch_table(
        &self,
        of: Columns,
        epsilon: f64,
        operands: &[View],
    ) -> Result<Array> {
        fit(of, &operands[1], 1)?;
        fit(of, &operands[2], 1)?;
        let (rows, channels, shares) = (of.rows as u64, number(of.channels)?, shares(of)?);
        let mut partial = self.array(2 * shares as usize * of.channels)?;
        let function = self.function("column_moments")?;
        let mut launch = function.builder();
        launch.arg(&rows).arg(&channels).arg(&operands[0]).arg(&mut partial);
        // SAFETY: the arguments are those of the kernel, by number and type. It reads rows · channels elements of the input
        // and writes two for each share and channel.
        unsafe { by_share(launch, channels, shares) }?;
        let mut to = self.array(ROWS * of.channels)?;
        let function = self.function("batch_table")?;
        let mut launch = function.builder();
        launch.arg(&rows).arg(&channels).arg(&shares).arg(&epsilon).arg(&partial);
        launch.arg(&operands[1]).arg(&operands[2]).arg(&mut to);
        // SAFETY: as above: two elements for each share and channel are read, a row of channels each of γ and β, and five
        // rows are written.
        unsafe { by_channel(launch, channels) }?;
        Ok(to)
    }

    /// `count_pass` of one number.
    pub(super) fn count_pass(passes: &mut CudaStorage, layout: &Layout) -> Result<()> {
        let device = passes.device.clone();
        let (gpu, settled) = (Gpu(&device), Running::SETTLED);
        let mut passes = Self::view_mut(passes, layout)?;
        let function = gpu.function("count_pass")?;
        let mut launch = function.builder();
        launch.arg(&settled).arg(&mut passes);
        // SAFETY: the arguments are those of the kernel, by number and type; it changes one element.
        unsafe { run(launch, (1, 1, 1), (1, 1, 1)) }
    }

    /// `track` of a running statistic, towards that of a batch.
    pub(super) fn track(
        (running, place): (&mut CudaStorage, &Layout),
        batch: &View,
        passes: &View,
        momentum: f64,
    ) -> Result<()> {
        let device = running.device.clone();
        let (gpu, channels) = (Gpu(&device), number(batch.len())?);
        let mut running = Self::view_mut(running, place)?;
        if running.len() != batch.len() || passes.len() != 1 {
            candle_core::bail!("{} statistics do not move by {channels}", running.len());
        }
        let function = gpu.function("track")?;
        let mut launch = function.builder();
        launch.arg(&channels).arg(&momentum).arg(batch).arg(passes).arg(&mut running);
        // SAFETY: the arguments are those of the kernel, by number and type. It reads the first of `passes` and `channels`
        // elements of the others, of which it changes those of `running`.
        unsafe { elementwise(launch, u64::from(channels)) }
    }

    /// `with_gradient` of the input, the gradient and the table.
    pub(super) fn with_gradient(&self, of: Columns, operands: &[View]) -> Result<Array> {
        fit(of, &operands[1], of.rows)?;
        fit(of, &operands[2], ROWS)?;
        let (rows, channels, shares) = (of.rows as u64, number(of.channels)?, shares(of)?);
        let mut partial = self.array(2 * shares as usize * of.channels)?;
        let function = self.function("gradient_sums")?;
        let mut launch = function.builder();
        launch.arg(&rows).arg(&channels);
        launch.arg(&operands[0]).arg(&operands[1]).arg(&operands[2]).arg(&mut partial);
        // SAFETY: the arguments are those of the kernel, by number and type. It reads rows · channels elements of the input
        // and of the gradient, four rows of the table, and writes two elements for each share and channel.
        unsafe { by_share(launch, channels, shares) }?;
        let mut to = self.array(2 * ROWS * of.channels)?;
        let function = self.function("with_gradient")?;
        let mut launch = function.builder();
        launch.arg(&channels).arg(&shares).arg(&partial).arg(&operands[2]).arg(&mut to);
        // SAFETY: as above: two elements for each share and channel are read, five rows of the table, and ten are written.
        unsafe { by_channel(launch, channels) }?;
        Ok(to)
    }

    /// `normalise` of the input with the table, and the residual if there is a third operand.
    pub(super) fn normalise(&self, of: Columns, relu: bool, operands: &[View]) -> Result<Array> {
        let (xs, table) = (&operands[0], &operands[1]);
        fit(of, table, ROWS)?;
        let mut to = self.array(xs.len())?;
        let function = self.function("normalise")?;
        let (count, channels, relu) = (xs.len() as u64, number(of.channels)?, u32::from(relu));
        let null = 0u64;
        let mut launch = function.builder();
        launch.arg(&count).arg(&channels).arg(&relu).arg(xs).arg(table);
        match operands.get(2) {
            Some(residual) => launch.arg(residual),
            None => launch.arg(&null),
        };
        launch.arg(&mut to);
        // SAFETY: the arguments are those of the kernel, by number and type, a null pointer being 64 bits of 0. It reads
        // `count` elements of `xs` and the residual, four rows of the table, and writes `count` elements.
        unsafe { elementwise(launch, count) }?;
        Ok(to)
    }

    /// `gate` of a result and a gradient of so many elements.
    pub(super) fn gate(&self, count: usize, operands: &[View]) -> Result<Array> {
        let mut to = self.array(count)?;
        let (function, count) = (self.function("gate")?, count as u64);
        let mut launch = function.builder();
        launch.arg(&count).arg(&operands[0]).arg(&operands[1]).arg(&mut to);
        // SAFETY: the arguments are those of the kernel, by number and type, and all three arrays have `count` elements.
        unsafe { elementwise(launch, count) }?;
        Ok(to)
    }

    /// `input_gradient` of an input, a gradient, and a table with its gradient.
    pub(super) fn input_gradient(
        &self,
        of: Columns,
        share: f32,
        operands: &[View],
    ) -> Result<Array> {
        let (xs, gs, table) = (&operands[0], &operands[1], &operands[2]);
        fit(of, gs, of.rows)?;
        fit(of, table, 2 * ROWS)?;
        let mut to = self.array(xs.len())?;
        let function = self.function("input_gradient")?;
        let (count, channels) = (xs.len() as u64, number(of.channels)?);
        let mut launch = function.builder();
        launch.arg(&count).arg(&channels).arg(&share).arg(xs).arg(gs).arg(table).arg(&mut to);
        // SAFETY: the arguments are those of the kernel, by number and type. It reads `count` elements of `xs` and `gs`,
        // seven rows of the table, and writes `count` elements.
        unsafe { elementwise(launch, count) }?;
        Ok(to)
    }

    /// `sgd` of weights with their momentum, unless its factor is 0.
    pub(crate) fn sgd(
        &self,
        of: &SgdStep,
        gradient: &View,
        momentum: Option<&mut ViewMut>,
        weights: &mut ViewMut,
    ) -> Result<()> {
        let (function, count) = (self.function("sgd")?, weights.len() as u64);
        let lengths = [gradient.len(), momentum.as_ref().map_or(gradient.len(), |m| m.len())];
        same_length(weights.len(), &lengths)?;
        let factors = [of.lr, of.weight_decay, of.momentum].map(|factor| factor as f32);
        let flags = [of.first, of.nesterov].map(u32::from);
        let null = 0u64;
        let mut launch = function.builder();
        launch.arg(&count).arg(&factors[0]).arg(&factors[1]).arg(&factors[2]);
        launch.arg(&flags[0]).arg(&flags[1]).arg(gradient);
        match momentum {
            Some(momentum) => launch.arg(momentum),
            None => launch.arg(&null),
        };
        launch.arg(weights);
        // SAFETY: the arguments are those of the kernel, by number and type, a null pointer being 64 bits of 0, and all
        // arrays have `count` elements.
        unsafe { elementwise(launch, count) }
    }

    /// `adamw` of weights with their moments.
    pub(crate) fn adamw(
        &self,
        of: &AdamWStep,
        gradient: &View,
        [one, two]: [&mut ViewMut; 2],
        weights: &mut ViewMut,
    ) -> Result<()> {
        same_length(weights.len(), &[gradient.len(), one.len(), two.len()])?;
        let (function, count) = (self.function("adamw")?, weights.len() as u64);
        let AdamWFactors { keep, size, root, eps, toward, held, fresh } = of.factors();
        let mut launch = function.builder();
        launch.arg(&count).arg(&keep).arg(&size).arg(&root).arg(&eps);
        launch.arg(&toward).arg(&held).arg(&fresh);
        launch.arg(gradient).arg(one).arg(two).arg(weights);
        // SAFETY: the arguments are those of the kernel, by number and type, and all arrays have `count` elements.
        unsafe { elementwise(launch, count) }
    }

    /// `average` of an average and what it is the average of.
    pub(crate) fn average(
        &self,
        share: f32,
        back: bool,
        average: &mut ViewMut,
        other: &mut ViewMut,
    ) -> Result<()> {
        same_length(average.len(), &[other.len()])?;
        let (function, count) = (self.function("average")?, average.len() as u64);
        let back = u32::from(back);
        let mut launch = function.builder();
        launch.arg(&count).arg(&share).arg(&back).arg(average).arg(other);
        // SAFETY: the arguments are those of the kernel, by number and type, and both arrays have `count` elements.
        unsafe { elementwise(launch, count) }
    }

    /// `swap` of two arrays.
    pub(crate) fn swap(&self, one: &mut ViewMut, other: &mut ViewMut) -> Result<()> {
        same_length(one.len(), &[other.len()])?;
        let (function, count) = (self.function("swap")?, one.len() as u64);
        let mut launch = function.builder();
        launch.arg(&count).arg(one).arg(other);
        // SAFETY: the arguments are those of the kernel, by number and type, and both arrays have `count` elements.
        unsafe { elementwise(launch, count) }
    }

    /// The sum of what `squares` gives.
    pub(crate) fn squares(&self, xs: &View) -> Result<f64> {
        let blocks = number(xs.len().div_ceil(BLOCK as usize).clamp(1, SHARES))?;
        // SAFETY: the kernel writes all of it before it is read.
        let mut sums = unsafe { self.0.alloc::<f64>(blocks as usize) }?;
        let (function, count) = (self.function("squares")?, xs.len() as u64);
        let mut launch = function.builder();
        launch.arg(&count).arg(xs).arg(&mut sums);
        // SAFETY: the arguments are those of the kernel, by number and type. It reads `count` elements and writes one for
        // each block, and blocks have as many threads as it asks for.
        unsafe { run(launch, (blocks, 1, 1), (BLOCK, 1, 1)) }?;
        Ok(self.0.clone_dtoh(&sums)?.into_iter().sum())
    }
}

/// Refuses arrays of several lengths.
fn same_length(length: usize, others: &[usize]) -> Result<()> {
    match others.iter().find(|other| **other != length) {
        Some(other) => candle_core::bail!("an update of {length} elements by one of {other}"),
        None => Ok(()),
    }
}

/// Refuses an operand that does not have so many rows of channels.
fn fit(of: Columns, operand: &View, rows: usize) -> Result<()> {
    if counts::elements(&[rows, of.channels]) != Some(operand.len()) {
        candle_core::bail!(
            "batch norm takes {rows} rows of {} channels, not {} elements",
            of.channels,
            operand.len()
        );
    }
    Ok(())
}

/// The shares that rows are summed in.
fn shares(of: Columns) -> Result<u32> {
    number(of.rows.div_ceil(8).clamp(1, SHARES))
}

/// A size as kernels take it.
fn number(size: usize) -> Result<u32> {
    u32::try_from(size).map_err(|_| too_large(size))
}

fn too_large(size: usize) -> Error {
    Error::Msg(format!("a size of {size} is too large for a GPU's kernels"))
}

/// Launches a grid of blocks of threads.
///
/// # Safety
/// The arguments must be those of the kernel, and their arrays as long as it goes.
unsafe fn run(
    mut launch: LaunchArgs,
    grid_dim: (u32, u32, u32),
    block_dim: (u32, u32, u32),
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { launch.launch(LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 }) }.w()?;
    Ok(())
}

/// Launches a grid-stride loop over `count` elements.
///
/// # Safety
/// As [`run`].
unsafe fn elementwise(launch: LaunchArgs, count: u64) -> Result<()> {
    let blocks = count.div_ceil(u64::from(BLOCK)).clamp(1, u64::from(BLOCKS)) as u32;
    // SAFETY: the caller's.
    unsafe { run(launch, (blocks, 1, 1), (BLOCK, 1, 1)) }
}

/// Launches a block of 32 channels by 8 rows for each share of the rows.
///
/// # Safety
/// As [`run`].
unsafe fn by_share(launch: LaunchArgs, channels: u32, shares: u32) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(launch, (channels.div_ceil(32).max(1), shares, 1), (32, 8, 1)) }
}

/// Launches a warp for each channel, eight in a block.
///
/// # Safety
/// As [`run`].
unsafe fn by_channel(launch: LaunchArgs, channels: u32) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { run(launch, (channels.div_ceil(8).max(1), 1, 1), (32, 8, 1)) }
}

/// Launches a block for each of so many rows, at least one, of so many columns.
///
/// # Safety
/// As [`run`].
unsafe fn by_row(launch: LaunchArgs, rows: usize, columns: u32) -> Result<()> {
    let threads = columns.clamp(1, BLOCK).next_power_of_two();
    // SAFETY: the caller's.
    unsafe { run(launch, (number(rows)?, 1, 1), (threads, 1, 1)) }
}
