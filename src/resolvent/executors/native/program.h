// What a sweep does, for points of any size: parsed from integers once for each system, and every bound checked.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "activation.h"

namespace {

enum { DENSE, LAGGED, CONVOLUTION };
enum Reach { UP_TO, BEFORE, WITHIN };  // what a product reads: all so far, all before its window, of that its loop's part

struct Block {
    Index first, last;
    int code;  // of σ
};
struct Rectangle {
    Index lag, last_lag, to_first, to_last, first, last;  // of W, which also a transposed program reads
};
struct Step {
    enum { PRODUCT, ACTIVATE, LOOP } kind;
    Index which;   // rectangle or block; or the loop's stride
    Reach reach;   // of a product
    size_t after;  // the step that follows, of a loop the one behind its body
};
struct Program {
    Index kind, channels, lags, axes, kernel[3], before[3], transposed;
    std::vector<Block> blocks;
    std::vector<Rectangle> rectangles;
    std::vector<Step> steps;
    Index taps, weight_axes, weight_shape[5];  // entries of the kernel; how W lies
    double work;                               // multiplications for one position

    struct Channels {
        Index to, outputs, from, inputs;
    };
    Channels channels_of(const Rectangle& r) const {
        if (transposed) return {r.first, r.last - r.first, r.to_first, r.to_last - r.to_first};
        return {r.to_first, r.to_last - r.to_first, r.first, r.last - r.first};
    }
    bool whole_blocks(Index given) const {
        if (given == channels) return true;
        for (const Block& block : blocks)
            if (block.last >= given) return block.last == given;
        return false;
    }
};

constexpr Index MANY = Index(1) << 31;
constexpr double MOST_ENTRIES = double(Index(1) << 48);  // so many that no size or offset in bytes overflows
constexpr int DEEPEST = 4;

class Parser {
    const std::vector<Index>& numbers;
    size_t at = 0;
    Program f;

    [[noreturn]] static void fail(const std::string& what) { throw std::invalid_argument("program: " + what); }
    static std::string span(Index low, Index high) { return std::to_string(low) + " to " + std::to_string(high); }
    Index take(const char* what, Index low, Index high) {
        if (at == numbers.size()) fail(std::string("ends before ") + what);
        const Index x = numbers[at++];
        if (x < low || x > high) fail(what + (" is " + std::to_string(x)) + ", not " + span(low, high));
        return x;
    }
    void range(const char* verb, Index most, Index& first, Index& last) {
        first = take("a range begins", INT64_MIN, INT64_MAX), last = take("it ends", INT64_MIN, INT64_MAX);
        if (first < 0 || last <= first || last > most)
            fail("rectangle " + std::to_string(f.rectangles.size()) + verb + span(first, last) + " of " + std::to_string(most));
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
        double entries = double(f.lags + 1) * f.channels * f.channels;
        for (Index side : f.kernel) entries *= side;
        if (entries > MOST_ENTRIES) fail("its weight has too many entries");
        f.taps = f.kernel[0] * f.kernel[1] * f.kernel[2];
        f.weight_axes = 0;
        if (lagged) f.weight_shape[f.weight_axes++] = f.lags + 1;
        for (int i = 0; i < 2; i++) f.weight_shape[f.weight_axes++] = f.channels;
        for (Index axis = 3 - f.axes; axis < 3; axis++) f.weight_shape[f.weight_axes++] = f.kernel[axis];
    }
    void parts() {
        const Index count = take("the number of blocks", 1, f.channels);
        Index first = 0;
        for (Index i = 0; i < count; i++) {
            const Index last = take("the end of a block", first + 1, f.channels);
            f.blocks.push_back({first, last, IDENTITY}), first = last;
        }
        if (first != f.channels)
            fail("its blocks end at channel " + std::to_string(first) + " of " + std::to_string(f.channels));
        for (Block& block : f.blocks) block.code = take("the code of an activation", 0, CODES - 1);
        f.work = 0;
        for (Index rest = take("the number of rectangles", 0, MANY); rest; rest--) {
            Rectangle r;
            range(" has lags ", f.lags + 1, r.lag, r.last_lag);
            range(" writes channels ", f.channels, r.to_first, r.to_last);
            range(" reads channels ", f.channels, r.first, r.last);
            f.work += double(r.last_lag - r.lag) * (r.to_last - r.to_first) * (r.last - r.first) * f.taps;
            f.rectangles.push_back(r);
        }
    }
    void steps(int depth) {
        for (Index rest = take("the number of steps", 0, MANY); rest; rest--) {
            const size_t i = f.steps.size();
            const Index kind = take("the kind of a step", Step::PRODUCT, Step::LOOP);
            f.steps.push_back({decltype(Step::kind)(kind), 0, UP_TO, i + 1});
            if (kind == Step::PRODUCT) {
                f.steps[i].which = take("the rectangle of a product", 0, Index(f.rectangles.size()) - 1);
                f.steps[i].reach = Reach(take("the reach of a product", UP_TO, f.kind == LAGGED ? WITHIN : UP_TO));
            } else if (kind == Step::ACTIVATE) {
                f.steps[i].which = take("an activated block", 0, Index(f.blocks.size()) - 1);
            } else {
                if (f.kind != LAGGED) fail("it has a loop, but no time");
                if (depth == DEEPEST) fail("its loops are nested more than " + std::to_string(DEEPEST) + " deep");
                f.steps[i].which = take("the stride of a loop", 1, INT64_MAX);
                steps(depth + 1);
                f.steps[i].after = f.steps.size();
            }
        }
    }

  public:
    explicit Parser(const std::vector<Index>& numbers) : numbers(numbers) {}
    Program parse() {
        head(), parts(), steps(0);
        if (at < numbers.size()) fail("has " + std::to_string(numbers.size() - at) + " integers too many");
        return std::move(f);
    }
};

}  // namespace
