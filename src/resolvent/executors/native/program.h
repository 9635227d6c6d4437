// What a sweep does, for points of any size: parsed from integers once for each system, and every bound checked.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "numbers.h"

enum { DENSE, LAGGED, CONVOLUTION };
enum { PRODUCT, ACTIVATE, LOOP };
enum { UP_TO, BEFORE, WITHIN };  // what a product reads: all so far, all before its window, of that its loop's part

Index product(const Index* shape, Index ndim) {
    Index total = 1;
    for (Index axis = 0; axis < ndim; axis++) total *= shape[axis];
    return total;
}

struct Range {
    Index first, last;
    Index size() const { return last - first; }
};
struct Block {
    Range channels;
    Index code;  // of σ
};
struct Rectangle {
    Range lags, out, in;  // of W; a transposed program reads `out` and writes `in`
    Index start;          // entries of the rectangles before it: where its own begin in a packed W, or in a copy
};
// Where a rectangle has W[lag, out, in], without the kernel: `first`, which may lie outside, + lag slab + out row + in.
struct Places {
    Index first, slab, row;
};
struct Step {
    Index kind, which, reach;  // which rectangle or block, or the loop's stride; reach of a product
    size_t after;              // the step that follows, of a loop the one behind its body
};
struct Program {
    Index kind, channels, lags, axes, kernel[3], before[3], taps;  // taps: entries of the kernel
    bool transposed, packed;  // packed: W has the entries of the rectangles alone, one rectangle after another
    Index entries = 0;        // of all rectangles, without the kernel
    std::vector<Index> weight_shape;
    std::vector<Block> blocks;
    std::vector<Rectangle> rectangles;
    std::vector<Step> steps;
    double work = 0;  // multiplications for one position

    Places places(const Rectangle& r) const { return packed ? packed_places(r) : Places{0, channels * channels, channels}; }
    static Places packed_places(const Rectangle& r) {
        const Index row = r.in.size(), slab = r.out.size() * row;
        return {r.start - r.lags.first * slab - r.out.first * row - r.in.first, slab, row};
    }
    // In a copy as [lag, in, out], where `row` lies between the inputs.
    static Places copied_places(const Rectangle& r) {
        const Index row = r.out.size(), slab = r.in.size() * row;
        return {r.start - r.lags.first * slab - r.in.first * row - r.out.first, slab, row};
    }
    const Range& to(const Rectangle& r) const { return transposed ? r.in : r.out; }
    const Range& from(const Rectangle& r) const { return transposed ? r.out : r.in; }
    bool whole_blocks(Index given) const {
        const auto ends = [=](const Block& block) { return block.channels.last == given; };
        return given == channels || std::any_of(blocks.begin(), blocks.end(), ends);
    }
};

constexpr Index MANY = Index(1) << 31, DEEPEST = 4;
constexpr double MOST_ENTRIES = double(Index(1) << 48);  // so many that no size or offset in bytes overflows

class Parser {
    const std::vector<Index>& numbers;
    size_t at = 0;
    Program f;

    [[noreturn]] static void fail(const std::string& what) { throw std::invalid_argument("program: " + what); }
    static std::string span(Range r) { return std::to_string(r.first) + " to " + std::to_string(r.last); }
    Index take(const char* what, Index low = INT64_MIN, Index high = INT64_MAX) {
        if (at == numbers.size()) fail(std::string("ends before ") + what);
        const Index x = numbers[at++];
        if (x < low || x > high) fail(what + (" is " + std::to_string(x)) + ", not " + span({low, high}));
        return x;
    }
    Range range(const char* verb, Index most) {
        const Range r = {take("a range begins"), take("it ends")};
        if (r.first >= 0 && r.last > r.first && r.last <= most) return r;
        fail("rectangle " + std::to_string(f.rectangles.size()) + verb + span(r) + " of " + std::to_string(most));
    }
    void head() {
        f.kind = take("the kind", DENSE, CONVOLUTION);
        const bool lagged = f.kind == LAGGED, conv = f.kind == CONVOLUTION;
        f.channels = take("the number of channels", 1, MANY);
        f.lags = take("the longest lag", 0, lagged ? MANY : 0);
        f.axes = take("the number of axes", conv, conv ? 3 : 0);
        for (int i = 0; i < 3; i++) f.kernel[i] = take("a side of the kernel", 1, i < 3 - f.axes ? 1 : MANY);
        for (int i = 0; i < 3; i++) f.before[i] = take("the padding before an axis", 0, f.kernel[i] - 1);
        f.transposed = take("transposed", 0, 1);
        f.packed = take("packed", 0, 1);
        const double entries = double(f.kernel[0]) * f.kernel[1] * f.kernel[2] * (f.lags + 1) * f.channels * f.channels;
        if (entries > MOST_ENTRIES) fail("its weight has too many entries");
        f.taps = f.kernel[0] * f.kernel[1] * f.kernel[2];
    }
    void shape() {
        if (f.packed) return f.weight_shape.assign(1, f.entries * f.taps);
        if (f.kind == LAGGED) f.weight_shape.push_back(f.lags + 1);
        f.weight_shape.insert(f.weight_shape.end(), 2, f.channels);
        f.weight_shape.insert(f.weight_shape.end(), f.kernel + 3 - f.axes, f.kernel + 3);
    }
    void parts() {
        const Index n = f.channels;
        Index end = 0;
        for (Index rest = take("the number of blocks", 1, n); rest; rest--) {
            const Index first = end;
            end = take("the end of a block", first + 1, n);
            f.blocks.push_back({{first, end}, IDENTITY});
        }
        if (end < n) fail("its blocks end at channel " + std::to_string(end) + " of " + std::to_string(n));
        for (Block& block : f.blocks) block.code = take("the code of an activation", 0, CODES - 1);
        for (Index rest = take("the number of rectangles", 0, MANY); rest; rest--) {
            const Range lags = range(" has lags ", f.lags + 1), out = range(" writes channels ", n);
            f.rectangles.push_back({lags, out, range(" reads channels ", n), f.entries});
            f.work += double(lags.size()) * out.size() * f.rectangles.back().in.size() * f.taps;
            if (f.work > MOST_ENTRIES) fail("its rectangles have too many entries");
            f.entries += lags.size() * out.size() * f.rectangles.back().in.size();
        }
    }
    void steps(int depth) {
        for (Index rest = take("the number of steps", 0, MANY); rest; rest--) {
            const size_t i = f.steps.size();
            Step step = {take("the kind of a step", PRODUCT, LOOP), 0, UP_TO, i + 1};
            if (step.kind == PRODUCT) {
                step.which = take("the rectangle of a product", 0, Index(f.rectangles.size()) - 1);
                step.reach = take("the reach of a product", UP_TO, f.kind == LAGGED ? WITHIN : UP_TO);
            } else if (step.kind == ACTIVATE) {
                step.which = take("an activated block", 0, Index(f.blocks.size()) - 1);
            } else {
                if (f.kind != LAGGED) fail("it has a loop, but no time");
                if (depth == DEEPEST) fail("its loops are nested more than " + std::to_string(DEEPEST) + " deep");
                step.which = take("the stride of a loop", 1);
            }
            f.steps.push_back(step);
            if (step.kind == LOOP) steps(depth + 1);
            f.steps[i].after = f.steps.size();
        }
    }

  public:
    explicit Parser(const std::vector<Index>& numbers) : numbers(numbers) {}
    Program parse() {
        head(), parts(), shape(), steps(0);
        if (at < numbers.size()) fail("has " + std::to_string(numbers.size() - at) + " integers too many");
        return std::move(f);
    }
};
