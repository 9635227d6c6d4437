// How tensors of PyTorch are seen, checked and made: through DLPack, and no copy.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "points.h"

enum { CPU = 1, FLOAT = 2, BOOL = 6 };

// What DLPack 1.3 fixes for exchange between libraries in one process: how PyTorch shows a tensor.
struct View {
    void* data;
    int32_t device, device_index, ndim;
    uint8_t kind, bits;
    uint16_t lanes;
    Index *shape, *strides;
    uint64_t offset;
    void* start() const { return (char*)data + offset; }
    bool native() const { return device == CPU && kind == FLOAT && (bits == 64 || bits == 32); }
};
struct Exchange {
    uint32_t major, minor;
    void *older, *allocate, *from_object, *to_object;  // not used: tensors made so cannot be resized
    int (*view)(PyObject* object, View*);
};

const Exchange* exchange;
PyObject *tensor_type, *parameter_type, *new_empty, *is_neg, *float_types[2];
PyObject* memory;  // a tuple: the shortest way to it, and what tells whether it is to be filled; or null

bool connect_torch() {
    PyObject *torch = PyImport_ImportModule("torch"), *nn = PyImport_ImportModule("torch.nn"), *capsule = nullptr;
    if (torch && nn && (tensor_type = PyObject_GetAttrString(torch, "Tensor")) &&
        (parameter_type = PyObject_GetAttrString(nn, "Parameter")) &&
        (float_types[0] = PyObject_GetAttrString(torch, "float32")) &&
        (float_types[1] = PyObject_GetAttrString(torch, "float64")) &&
        (new_empty = PyUnicode_InternFromString("new_empty")) && (is_neg = PyUnicode_InternFromString("is_neg")) &&
        (capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__")))
        exchange = (const Exchange*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(torch), Py_XDECREF(nn), Py_XDECREF(capsule);
    return exchange && exchange->major == 1 && exchange->view;
}

// What PyTorch shows of a tensor that is no subclass and no wrapper; or false. This is most of what a check costs.
bool show(PyObject* object, View& x) {
    if ((PyObject*)Py_TYPE(object) != tensor_type && (PyObject*)Py_TYPE(object) != parameter_type) return false;
    return !exchange->view(object, &x) || (PyErr_Clear(), false);
}

// Whether a tensor lies contiguously, in this shape and with the device and the type of another.
bool lies_so(const View& x, const View& like, Index ndim, const Index* shape) {
    if (x.device != like.device || x.device_index != like.device_index || x.kind != like.kind || x.bits != like.bits ||
        x.ndim != ndim || !std::equal(shape, shape + ndim, x.shape))
        return false;
    const bool ordered = x.strides && product(shape, ndim);
    Index stride = 1;
    for (Index axis = ndim - 1; ordered && axis >= 0; stride *= shape[axis--])
        if (shape[axis] != 1 && x.strides[axis] != stride) return false;
    return true;
}

// Whether the storage was freed by `untyped_storage().resize_(0)`, or tells no address.
bool freed(PyObject* object) {
    PyObject* storage = PyObject_CallMethod(object, "untyped_storage", nullptr);
    PyObject* address = storage ? PyObject_CallMethod(storage, "data_ptr", nullptr) : nullptr;
    const bool none = !address || !PyObject_IsTrue(address);
    Py_XDECREF(storage), Py_XDECREF(address);
    PyErr_Clear();
    return none;
}

// Whether it is None, which is null, or a tensor that is no promise of zeros and not the negative of what is stored,
// but lies so. What was already seen of it need not be shown again.
bool readable(PyObject* object, const View& like, Index ndim, const Index* shape, void** data, View* seen = nullptr) {
    *data = nullptr;
    if (object == Py_None) return true;
    View x;
    if (!seen && !show(object, x)) return false;
    if (seen) x = *seen;
    if (!lies_so(x, like, ndim, shape)) return false;
    *data = x.start();
    // A view of freed memory shows its offset for an address. Where Python is not position-independent, as Debian's,
    // small tensors do lie that low: there the storage is asked.
    if (product(shape, ndim) && (!x.data || (uintptr_t(*data) < uintptr_t(1) << 32 && freed(object)))) return false;
    PyObject* negated = PyObject_CallMethodObjArgs(object, is_neg, nullptr);
    Py_XDECREF(negated);
    return negated == Py_False;
}

// Weight, bias, y0, z0, point, value and inside, or None for each, as a program takes them: where they are, or that one
// does not fit. Only y0 may have fewer channels, those of the first blocks.
struct Given {
    PyObject* like;  // y0 or else z0
    View x;          // of it
    Extent extent;
    Index inputs, shape[16];  // its channels; of a point, which has all
    void* data[7];
    bool fits;

    Given(const Program& f, PyObject* const* a, Index numbers = 1)
        : like(a[2] == Py_None ? a[3] : a[2]), fits(shaped(f, numbers)) {
        if (!fits) return;
        View flags = x;
        flags.kind = BOOL, flags.bits = 8;
        fits = readable(a[0], x, f.weight_shape.size(), f.weight_shape.data(), data) &&
               readable(a[1], x, 1, &f.channels, data + 1) && readable(a[2], x, x.ndim, x.shape, data + 2, &x);
        for (int i = 3; fits && i < 7; i++) fits = readable(a[i], i < 6 ? x : flags, x.ndim, shape, data + i);
    }

    bool shaped(const Program& f, Index numbers) {
        if (!show(like, x)) return false;
        const Index event = f.kind == LAGGED ? 2 : 1 + f.axes, channel = x.ndim - 1 - f.axes, most = event + 1 + (numbers > 1);
        if (x.ndim < event + (numbers > 1) || x.ndim > 16 || (event > 1 && x.ndim > most)) return false;
        if (numbers > 1 && x.shape[x.ndim - event - 1] != numbers) return false;
        double entries = 1;  // with all channels, and also where an axis is empty
        for (Index axis = 0; axis < x.ndim; axis++) {
            shape[axis] = axis == channel ? f.channels : x.shape[axis];
            entries *= std::max<Index>(shape[axis], 1);
        }
        if (entries > MOST_ENTRIES) return false;
        extent = {0, f.kind == LAGGED ? shape[channel - 1] : 1, 0, {1, 1, 1}, 0};
        std::copy(shape + channel + 1, shape + x.ndim, extent.space + 3 - f.axes);
        extent.area = extent.times * product(extent.space, 3);
        extent.batch = extent.area ? product(shape, x.ndim - event) : 0;
        inputs = x.shape[channel];
        return f.transposed ? inputs == f.channels : f.whole_blocks(inputs);
    }

    // A new tensor of this shape, and where it is.
    PyObject* empty(Index ndim, const Index* shape, void** data) const {
        PyObject *sizes = PyTuple_New(ndim), *strides = PyTuple_New(ndim), *result = nullptr;
        for (Index axis = ndim - 1, stride = 1; sizes && strides && axis >= 0; axis--) {
            PyTuple_SetItem(sizes, axis, PyLong_FromLongLong(shape[axis]));
            PyTuple_SetItem(strides, axis, PyLong_FromLongLong(stride));
            stride *= std::max<Index>(shape[axis], 1);
        }
        PyObject *held = Py_XNewRef(memory), *filled = held ? PyObject_CallNoArgs(PyTuple_GetItem(held, 1)) : nullptr;
        if (held && !filled) PyErr_Clear();
        PyObject* type = float_types[x.bits == 64];
        if (sizes && strides && filled == Py_False)
            result = PyObject_CallFunctionObjArgs(PyTuple_GetItem(held, 0), sizes, strides, type, nullptr);
        else if (sizes && strides) result = PyObject_CallMethodObjArgs(like, new_empty, sizes, nullptr);
        Py_XDECREF(sizes), Py_XDECREF(strides), Py_XDECREF(filled), Py_XDECREF(held);
        View made;
        if (result && (!show(result, made) || !lies_so(made, x, ndim, shape))) {
            const char* message = "a new tensor is not what was asked for: is something between it and PyTorch?";
            PyErr_SetString(PyExc_TypeError, message);
            Py_CLEAR(result);
        }
        if (result) *data = made.start();
        return result;
    }
};
